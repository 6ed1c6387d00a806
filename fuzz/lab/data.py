"""Surfaces: the loaders of data sets. Sound files are read as they were written, damaged ones do no harm."""

import gzip
import io
import pickle
import re
import struct
from functools import partial

import numpy as np
from hypothesis import strategies as st
from PIL import Image

from bartizan.lab.data.base import DataError
from bartizan.lab.data.loaders import load
from fuzz.surfaces import ACCEPTED, COMPARED, documented, require, surface_of_calls
from fuzz.values import files

N_TRAIN, N = 5, 6
"""Images to train on, and all: the last one is the test set."""


def _batches(key, protocol, x, y):
    made = [pickle.dumps({b"data": x[n : n + 1], key: [int(y[n])], b"batch_label": b"one"}, protocol) for n in range(N)]
    return {**{f"data_batch_{n + 1}": made[n] for n in range(N_TRAIN)}, "test_batch": made[-1]}, x


def _cifar100(x, y):
    parts = {"train": slice(N_TRAIN), "test": slice(N_TRAIN, N)}
    made = {name: pickle.dumps({b"data": x[at], b"fine_labels": y[at].tolist()}, 2) for name, at in parts.items()}
    return made | {"meta": pickle.dumps({"fine_label_names": [f"c{n}" for n in range(100)]}, 2)}, x


def _idx(pack, x, y):
    x, made = x[:, :784].reshape(N, 28, 28), {}
    for part, at in {"train": slice(N_TRAIN), "t10k": slice(N_TRAIN, N)}.items():
        for name, a in (("images-idx3-ubyte", x[at]), ("labels-idx1-ubyte", y[at])):
            whole = struct.pack(f">{1 + a.ndim}I", 2048 + a.ndim, *a.shape) + a.tobytes()
            made[f"{part}-{name}" + ".gz" * pack] = gzip.compress(whole, mtime=0) if pack else whole
    return made, x


def _tiny_imagenet(x, y):
    y[:] = [*range(N_TRAIN), y[-1] % N_TRAIN]
    made = {"wnids.txt": b"n0\nn1\nn2\nn3\nn4\n", "words.txt": b"n0\tgoldfish, fish\nn1\tfrog\n"}
    made["val/val_annotations.txt"] = f"val_0.JPEG\tn{y[-1]}\t0\t0\t9\t9\n".encode()
    paths = [*(f"train/n{n}/images/n{n}_0.JPEG" for n in range(N_TRAIN)), "val/images/val_0.JPEG"]
    for path, row in zip(paths, x, strict=True):
        out = io.BytesIO()
        Image.fromarray(row[:768].reshape(16, 16, 3)).resize((64, 64)).save(out, "JPEG", quality=40)
        made[path] = out.getvalue()
    return made, np.stack([np.asarray(Image.open(io.BytesIO(made[path]))).transpose(2, 0, 1) for path in paths])


def _sotu(authors, x, y):
    """Write addresses and read them by the definition: windows of 65, the last tenth of each author's to test."""
    letters = [chr(c) for c in [*range(32, 127), 0x2018, 0x201D, 0x2014, 0xE9, 9, 10]]
    plain = {0x2018: "'", 0x201D: '"', 0x2014: "-", 9: " ", 10: " "}
    parts, made = ([], []), {}
    for author, (name, row) in enumerate(zip(authors, x.reshape(2, -1), strict=False)):
        text = "".join(letters[one % len(letters)] for one in row[: 2000 + 10 * int(y[0])])
        made[name] = text.encode()
        codes = re.sub(" +", " ", text.translate(plain))
        codes = [0 if c == " " else ord(c) - 32 if ord(c) < 127 else 95 for c in codes]
        cut = round(0.9 * len(codes))
        for part, piece in zip(parts, (codes[:cut], codes[cut:]), strict=True):
            part += [(piece[at : at + 65], author) for at in range(0, len(piece) - 64, 64)]
    rows = [*parts[0], *parts[1]]
    y.resize(len(rows), refcheck=False)
    y[:] = [author for _, author in rows]
    return made, np.array([row for row, _ in rows])


def _check(name, folder, content, *wanted):
    """Load a folder of these files; `wanted` are the pixels and labels of sound ones."""
    for one in content:
        (folder / one).parent.mkdir(parents=True, exist_ok=True)
        (folder / one).write_bytes(content[one])
    with documented(DataError, sound=bool(wanted)):
        found = load(name, folder)
    for images in (found.train, found.test):
        same = images.pixels.dtype == np.uint8 and len(images.pixels) == len(images.labels)
        require(same, "images and labels differ in number or type")
        require(images.labels.min() >= 0 and images.labels.max() < found.n_classes, "labels beyond the classes")
        require(images.pixels.size < 10**7, "more pixels than the files have bytes for")
    if not wanted:
        return ACCEPTED
    pixels, labels = (
        np.concatenate([getattr(found.train, of), getattr(found.test, of)]) for of in ("pixels", "labels")
    )
    same = np.array_equal(pixels.reshape(len(pixels), -1), wanted[0].reshape(len(wanted[0]), -1))
    require(same, "other pixels than were written")
    require(np.array_equal(labels, wanted[1]), "other labels than were written")
    return COMPARED


def written(write, seed):
    """Return the files of a data set, its pixels and its labels."""
    rng = np.random.default_rng(seed)
    x, y = rng.integers(0, 256, (N, 3072), np.uint8), rng.integers(0, 10, N, np.uint8)
    return *write(x, y), y


def _cases(name, write, folder):
    """Return strategies of calls with a data set as it is written, and with one file replaced or changed."""
    whole, *_ = written(write, 0)

    def sound(seed):
        return _check(name, folder, *written(write, seed))

    def damaged(one, data):
        return _check(name, folder, whole | {one: data})

    seeds = st.integers(0, 2**32).map(partial(partial, sound))
    return [seeds, seeds, *(files(whole[one]).map(partial(partial, damaged, one)) for one in whole)]


def _surface(*sets):
    def surface(folder):
        return surface_of_calls(
            st.one_of([case for n, one in enumerate(sets) for case in _cases(*one, folder / str(n))])
        )

    return surface


FORMATS = {
    "cifar10": partial(_batches, b"labels", 2), "cifar100": _cifar100, "idx": partial(_idx, False),
    "packed": partial(_idx, True), "tiny-imagenet": _tiny_imagenet,
}  # fmt: skip
cifar = _surface(("cifar10", FORMATS["cifar10"]), ("cifar10", partial(_batches, "labels", 4)), ("cifar100", _cifar100))
mnist = _surface(("fashion-mnist", FORMATS["idx"]), ("mnist", FORMATS["packed"]))
AUTHORS = ["1789_george_washington_n.txt", "1797_john_adams_f.txt"]
sotu = _surface(("sotu", partial(_sotu, AUTHORS)), ("sotu", partial(_sotu, AUTHORS[1:])))
tiny_imagenet = _surface(("tiny-imagenet", _tiny_imagenet))
