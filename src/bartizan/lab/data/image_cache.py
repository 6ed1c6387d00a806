"""A cache of decoded images in the user's cache folder."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bartizan._util.atomic import write_whole

Pixels = npt.NDArray[np.uint8]


def cached(name: str, files: Iterable[Path], shape: tuple[int, ...], make: Callable[[], Pixels]) -> Pixels:
    """The images that `make` decodes from these files, from the cache if the files have not changed since.

    If the cache can't be written, the images are decoded again the next time.
    """
    path = _folder() / f"{name}-{_digest(files)}.npy"
    found = _read(path, shape)
    if found is not None:
        return found
    pixels = make()
    with suppress(OSError):
        write_whole(path, lambda file: np.save(file, pixels, allow_pickle=False))
    return pixels


def _read(path: Path, shape: tuple[int, ...]) -> Pixels | None:
    try:
        found = np.load(path, mmap_mode="r", allow_pickle=False)
        return found if found.shape == shape and found.dtype == np.uint8 else None
    except Exception:  # whatever is in the file, the images can be decoded again
        return None


def _digest(files: Iterable[Path]) -> str:
    """A hash of the names, sizes and times of change of the files."""
    digest = hashlib.sha256()
    for path in files:
        stat = path.stat()
        digest.update(f"{path.absolute()}\0{stat.st_size}\0{stat.st_mtime_ns}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()[:16]


def _folder() -> Path:
    home: Any = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(home) if os.path.isabs(home) else Path.home() / ".cache") / "bartizan"
