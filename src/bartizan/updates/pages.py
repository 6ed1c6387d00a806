"""Release pages of mapped files after they were read; they are loaded from the file when touched again."""

from __future__ import annotations

import ctypes
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache

import numpy as np

from bartizan._util.types import Array

NEIGHBOURS = 2**21  # bytes that the kernel may map at a time around the page that was asked for
DONTNEED = 4  # MADV_DONTNEED on Linux
MAPPING = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (\S{4}) \S+ \S+ (\d+)")
CHANGED = re.compile(r"(?:Anonymous|Swap): +(\d+) kB")


@dataclass(frozen=True)
class MappedPages:
    """The mapped files of this process, [start, stop), whose pages hold nothing but what the file holds.

    On systems other than Linux none are known, and none are released.
    """

    starts: tuple[int, ...]
    stops: tuple[int, ...]

    @classmethod
    def now(cls, *, written: Iterable[Array] = ()) -> MappedPages:
        """The files that are mapped now; private mappings of the arrays that will be `written` are left out."""
        try:
            with open("/proc/self/smaps") as smaps:
                text = smaps.read()
        except OSError:
            return cls((), ())
        private = [span(array) for array in written]
        found = []
        for mapping in re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", text, flags=re.MULTILINE)[1:]:
            head = MAPPING.match(mapping)
            if head is None or head[4] == "0":  # no file
                continue
            start, stop, shared = int(head[1], 16), int(head[2], 16), head[3][3] == "s"
            # A page of a private mapping that was written to is nowhere but in memory: dropping it would undo that.
            if shared or not (
                any(int(size) for size in CHANGED.findall(mapping))
                or any(low < stop and start < high for low, high in private)
            ):
                found.append((start, stop))
        found.sort()
        return cls(tuple(start for start, _ in found), tuple(stop for _, stop in found))

    def release(self, low: int, high: int) -> None:
        """Release the pages of these addresses, where they belong to a mapped file."""
        at = bisect_right(self.starts, low) - 1
        if at >= 0 and low < self.stops[at]:
            low = max(self.starts[at], low - low % NEIGHBOURS)
            high = min(self.stops[at], high + -high % NEIGHBOURS)
            _madvise()(low, high - low, DONTNEED)  # advice: if it can't be followed, nothing is lost


def span(array: Array) -> tuple[int, int]:
    """Addresses of the first byte of an array and of the byte after its last."""
    return np.lib.array_utils.byte_bounds(array)


@cache
def _madvise() -> Callable[[int, int, int], int]:
    call = ctypes.CDLL(None).madvise
    call.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return call
