"""Files mapped into memory: no descriptor is kept, and their addresses are known from the mappings themselves."""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import threading
from bisect import bisect_left, bisect_right
from functools import cache
from typing import Any, Literal, NamedTuple

import numpy as np

from bartizan._util.types import Array

MAX_MAPPED = 2**14  # of the 65,530 mappings that Linux allows a process
NEIGHBOURS = 2**21  # bytes that the kernel may map at a time around the page that was asked for
DONTNEED = 4  # MADV_DONTNEED
SYNC = 4 if sys.platform == "linux" else 16  # MS_SYNC
NORESERVE = 0x4000 if sys.platform == "linux" else 0  # a private map that is larger than RAM needs no RAM set aside

Access = Literal["read", "private", "shared"]
"""The part of a mapping that may be written: nothing, pages of this process only, or the file."""


class MappedPart(NamedTuple):
    """A part of a file that is mapped at the addresses [start, stop)."""

    start: int
    stop: int
    private: bool = False
    """True if it may hold changes that the file does not."""


class MappedFile:
    """The first `size` bytes of a file, in memory as long as arrays of it are in use.

    The descriptor may be closed at once, which Python's `mmap` keeps. Arrays are made by `np.ndarray(..., memory)`.
    """

    part: MappedPart | None = None

    def __init__(self, descriptor: int, size: int, access: Access) -> None:
        self._library = _library()
        protection = mmap.PROT_READ | (0 if access == "read" else mmap.PROT_WRITE)
        flags = mmap.MAP_SHARED if access == "shared" else mmap.MAP_PRIVATE | NORESERVE
        start = self._library.mmap(None, size, protection, flags, descriptor, 0)
        if start == ctypes.c_void_p(-1).value:
            raise _last_error()
        self.part = MappedPart(start, start + size, access == "private")
        _add(self.part)

    def memory(self, *, writable: bool) -> Array:
        """Return the bytes as an array with this `writable` flag."""
        return np.asarray(_Bytes(self, writable=writable))

    def flush(self) -> None:
        """Wait until the disk has what was written; OSError if it can't take it."""
        assert self.part is not None
        if self._library.msync(self.part.start, self.part.stop - self.part.start, SYNC):
            raise _last_error()

    def __del__(self) -> None:
        if self.part is not None:
            _parts.pop(self.part.start, None)  # before another mapping can be there
            self._library.munmap(self.part.start, self.part.stop - self.part.start)


class _Bytes:
    """A buffer for NumPy's arrays that keeps the mapping."""

    def __init__(self, mapped: MappedFile, *, writable: bool) -> None:
        assert mapped.part is not None
        self.mapped, shape = mapped, (mapped.part.stop - mapped.part.start,)
        data = mapped.part.start, not writable
        self.__array_interface__ = {"version": 3, "typestr": "|u1", "shape": shape, "data": data}


# `MappedFile.__del__`, which may run at any time, changes only `_parts`: starts without a part there are passed over.
_lock = threading.RLock()
_starts: list[int] = []  # sorted
_parts: dict[int, MappedPart] = {}


def n_mapped() -> int:
    """The number of mappings that this library holds."""
    return len(_parts)


def _add(part: MappedPart) -> None:
    with _lock:
        if len(_starts) > 2 * len(_parts) + 64:
            _starts[:] = sorted(_parts)
        _starts[bisect_left(_starts, part.start) : bisect_left(_starts, part.stop)] = [part.start]
        _parts[part.start] = part


def part_of(array: Array, address: int) -> MappedPart | None:
    """The mapping that holds an array, from this address on: this library's own, or one of `np.memmap`; else None."""
    with _lock:
        at = bisect_right(_starts, address) - 1
        part = _parts.get(_starts[at]) if at >= 0 else None
    return part if part is not None and address < part.stop else _memmap_part(array)


def _memmap_part(array: Array) -> MappedPart | None:
    """The mapping of the `np.memmap` that an array is a part of."""
    base = _base(array)
    while isinstance(base, np.ndarray):
        array, base = base, _base(base)
    if type(array) is not np.memmap or type(base) is not mmap.mmap:
        return None
    if type(array.mode) is not str or array.mode not in ("r", "r+", "w+"):  # it may have been set to anything
        return None
    return MappedPart(*span(np.frombuffer(base, np.uint8)))


def _base(array: Array) -> Any:
    """The object that owns the array's memory, whatever a subclass of a client calls its `base`."""
    return np.ndarray.base.__get__(array)


def release(array: Array, low: int, high: int) -> None:
    """Release the pages of an array at these addresses, if the file holds all that was written to them."""
    part = part_of(array, low)
    if part is not None and not part.private:
        low = max(part.start, low - low % NEIGHBOURS)
        high = min(part.stop, high + -high % NEIGHBOURS)
        _library().madvise(low, high - low, DONTNEED)  # advice: if it can't be followed, nothing is lost


def span(array: Array) -> tuple[int, int]:
    """Return the addresses of the first byte of an array and of the byte after its last."""
    return np.lib.array_utils.byte_bounds(array)


def _last_error() -> OSError:
    code = ctypes.get_errno()
    return OSError(code, os.strerror(code))


@cache
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(None, use_errno=True)
    address, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    library.mmap.restype = address
    library.mmap.argtypes = (address, size, number, number, number, ctypes.c_long)
    library.munmap.argtypes = (address, size)
    library.msync.argtypes = library.madvise.argtypes = (address, size, number)
    return library


def _forget() -> None:
    """Renew the lock in a forked child, where no thread can release it."""
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_forget)
