"""Decoded images, kept in the user's cache folder: whole or not at all, and found again only if nothing changed."""

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


def kept(name: str, files: Iterable[Path], shape: tuple[int, ...], make: Callable[[], Pixels]) -> Pixels:
    """What `make` makes of these files, or made before; it is mapped into memory where it was kept.

    A folder that can't be written to, or a full disk, means only that the next time it is made again.
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
    except Exception:  # it is only a cache: whatever is in the file, the images can be decoded again
        return None


def _digest(files: Iterable[Path]) -> str:
    """Of names, sizes and times of change: whoever replaces one file has it read again."""
    digest = hashlib.sha256()
    for path in files:
        stat = path.stat()
        digest.update(f"{path.absolute()}\0{stat.st_size}\0{stat.st_mtime_ns}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()[:16]


def _folder() -> Path:
    home: Any = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(home) if os.path.isabs(home) else Path.home() / ".cache") / "bartizan"
