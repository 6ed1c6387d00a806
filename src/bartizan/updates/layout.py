"""The layout of an update: its entries, their shapes and dtypes."""

from __future__ import annotations

import math
import sys
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import count
from typing import Any, TypeGuard

import numpy as np

from bartizan._util.types import Array
from bartizan.updates.dlpack import DLPackArray, borrowed, speaks_dlpack

Path = tuple[Any, ...]
MAX_NODES = 100_000  # of one update's container: a client may nest it without end
MAX_UNOWNED_BYTES, MAX_REPEATS = 2**26, 2**4  # arrays of more bytes must own memory for one in MAX_REPEATS of them
FLOATS = ("float16", "bfloat16", "float32", "float64")


@dataclass(frozen=True)
class Entry:
    """One array of an update: its place in the container, its shape and the name of its dtype."""

    path: Path
    shape: tuple[int, ...]
    dtype: str
    device: str = "cpu"

    @cached_property
    def size(self) -> int:
        return math.prod(self.shape)

    @cached_property
    def is_float(self) -> bool:
        return self.dtype in FLOATS

    def __str__(self) -> str:
        where = "" if self.device == "cpu" else f" on {self.device}"
        return f"{_where(self.path)} ({self.dtype}, shape {self.shape}{where})"


@dataclass(frozen=True)
class Unreadable:
    """A stand-in for an update that can't be read: the reason for which its client is quarantined."""

    reason: str


@dataclass(frozen=True)
class Layout:
    """The entries that every client of a round must send, in the order in which coordinates are counted.

    Coordinates 0 to p = `dim` are those of the floating-point entries.
    """

    entries: tuple[Entry, ...]

    @cached_property
    def float_entries(self) -> tuple[Entry, ...]:
        return tuple(entry for entry in self.entries if entry.is_float)

    @cached_property
    def dim(self) -> int:
        return sum(entry.size for entry in self.float_entries)

    @cached_property
    def ends(self) -> Array:
        """The coordinate after the last one of each floating-point entry."""
        return np.cumsum([entry.size for entry in self.float_entries])

    @cached_property
    def widest(self) -> np.dtype:
        """The precision that the updates are read in: float64 if any entry is, else float32."""
        return np.dtype(np.float64 if any(entry.dtype == "float64" for entry in self.entries) else np.float32)

    def misfit(self, other: Layout, *, any_precision: bool = False) -> str | None:
        """Return why `other` is not an update of this layout (in any key order); None if it is.

        With `any_precision` floats may be of other dtypes, so may integers, and the device does not matter.
        """
        wanted = {entry.path: entry for entry in self.entries}
        came = {entry.path: entry for entry in other.entries}
        for path, entry in wanted.items():
            if path not in came:
                return f"{entry} is missing"
            alike = (came[path].shape, came[path].is_float) == (entry.shape, entry.is_float)
            if not (alike and any_precision) and came[path] != entry:
                where = f" on {came[path].device}" if came[path].device != entry.device else ""
                return f"wanted {entry}, got {came[path].dtype} of shape {came[path].shape}{where}"
        for path, entry in came.items():
            if path not in wanted:
                return f"{entry} is not part of this round's updates"
        return None

    @classmethod
    def of(cls, leaves: Mapping[Path, Any]) -> Layout:
        """Describe the arrays of one update; TypeError if one does not hold numbers."""
        entries = tuple(
            Entry(path, tuple(leaf.shape), dtype_name(leaf, path), device_of(leaf)) for path, leaf in leaves.items()
        )
        if len(devices := {entry.device for entry in entries}) > 1:
            raise TypeError(f"its entries are on several devices, {' and '.join(sorted(devices))}; move them to one")
        return cls(entries)

    @classmethod
    def most_common(cls, layouts: Sequence[Layout]) -> Layout:
        """Return the layout with the most common entries, in the order that most clients with these use."""
        if len(set(map(id, layouts))) == 1:
            return layouts[0]
        sets = Counter(frozenset(layout.entries) for layout in layouts)
        winner = sets.most_common(1)[0][0]
        return Counter(layout for layout in layouts if frozenset(layout.entries) == winner).most_common(1)[0][0]


def layout_key(leaves: Mapping[Path, Any]) -> tuple[Any, ...]:
    """Return a hashable key of the layout of these arrays, cheaper than the layout itself."""
    return tuple(
        [
            (path, leaf.shape, leaf.dtype, (leaf.device, leaf.layout) if is_tensor(leaf) else None)
            for path, leaf in leaves.items()
        ]
    )


def leaves_of(update: Any) -> dict[Path, Any]:
    """Return the arrays of one client's update by path; raise TypeError for anything but arrays in containers."""
    return plain_and_leaves(update)[1]


def plain_and_leaves(update: Any) -> tuple[Any, dict[Path, Any]]:
    """The update in plain containers, and its arrays by their path.

    The update's own container is read only once: it may be a lazily read file, or a class that answers differently the
    next time.
    """
    leaves: dict[Path, Any] = {}
    try:
        plain = _plain(update, (), leaves, count(1))
    except RecursionError:
        raise TypeError("the update is nested without end") from None
    except OverflowError as too_large:
        raise TypeError(f"a number is too large: {too_large}") from None
    claimed = sum([leaf.nbytes for leaf in leaves.values()])
    if claimed > MAX_UNOWNED_BYTES and claimed > MAX_REPEATS * (held := _memory(leaves.values())):
        raise TypeError(
            f"its entries have {claimed:,} bytes together and memory for {held:,}, which they repeat; "
            "send arrays that hold all of their own"
        )
    return plain, leaves


def _plain(node: Any, path: Path, leaves: dict[Path, Any], nodes: Iterator[int]) -> Any:
    if next(nodes) > MAX_NODES:
        raise TypeError(f"the update has more than {MAX_NODES:,} parts")
    kind = type(node)
    if kind is np.ndarray or kind is DLPackArray or is_tensor(node):
        leaves[path] = node
        return node
    if kind is Unreadable:
        raise TypeError(node.reason)
    if issubclass(kind, np.ma.MaskedArray):
        raise TypeError(f"{_where(path)} is a masked array; fill its mask first")
    if issubclass(kind, (np.ndarray, np.generic)):
        # Of a subclass only the memory is used, none of its methods.
        return _plain(np.asarray(node), path, leaves, nodes)
    if speaks_dlpack(kind):
        return _plain(borrowed(node), path, leaves, nodes)
    if issubclass(kind, Mapping):
        items = [(key, _plain(child, (*path, key), leaves, nodes)) for key, child in node.items()]
        if kind is dict or kind is OrderedDict:
            same = all(one is child for (_, one), child in zip(items, node.values(), strict=True))
            return node if same else kind(items)
        return OrderedDict(items) if issubclass(kind, OrderedDict) else dict(items)
    if issubclass(kind, (list, tuple)):
        own: Any = list if issubclass(kind, list) else tuple
        children = node if kind is own else [*own.__iter__(node)]  # no method of a subclass is called
        if _plain_numbers(children):
            leaves[path] = np.asarray(children, dtype=np.float64)
            return leaves[path]
        plain = [_plain(child, (*path, index), leaves, nodes) for index, child in enumerate(children)]
        if children is node and all(one is child for one, child in zip(plain, children, strict=True)):
            return node
        if own is list:
            return plain
        return kind(*plain) if hasattr(kind, "_fields") else tuple(plain)
    hint = "; a file is given as pathlib.Path(...)" if issubclass(kind, str) and not path else ""
    raise TypeError(
        f"{_where(path)} is a {kind.__name__}, not a NumPy array, a torch tensor or an array that speaks DLPack{hint}"
    )


def _memory(leaves: Iterable[Any]) -> int:
    """Return the bytes of memory that these arrays use; shared memory counts once."""
    spans = sorted(_span(leaf) for leaf in leaves if leaf.nbytes)
    held, reached = 0, ("", 0)
    for device, start, stop in spans:
        if not start:  # of a sharded tensor other ranks hold parts too
            held += stop
            continue
        reached = max(reached, (device, start))
        held += max(0, stop - reached[1])
        reached = max(reached, (device, stop))
    return held


def _span(leaf: Any) -> tuple[str, int, int]:
    """Return device, first byte and end of the memory of an array."""
    if is_tensor(leaf):
        if leaf.is_contiguous():
            return _device_name(leaf.device), leaf.data_ptr(), leaf.data_ptr() + leaf.nbytes
        first, steps = leaf.data_ptr(), [step * leaf.element_size() for step in leaf.stride()]
    else:
        first, steps = leaf.__array_interface__["data"][0], leaf.strides
    ends = [(n - 1) * step for n, step in zip(leaf.shape, steps, strict=True)]
    start = first + sum(min(0, end) for end in ends)
    return device_of(leaf), start, start + sum(map(abs, ends)) + leaf.nbytes // math.prod(leaf.shape)


def _where(path: Path) -> str:
    return f"entry {shown_path(path)!r}" if path else "the update"


def shown_path(path: Path, most: int = 200) -> str:
    """The keys joined by dots, shortened; a client's keys may be of any class."""
    try:
        text = ".".join(map(str, path))
    except Exception:
        text = ".".join(key if type(key) is str else f"<{type(key).__name__}>" for key in path)
    return text if len(text) <= most else f"{text[:most]}..."


def rebuild(like: Any, build: Callable[[Path, Any], Any], path: Path = ()) -> Any:
    """Return a copy of nested containers in which each array is replaced by `build(path, array)`."""
    if isinstance(like, Mapping):
        items = [(key, rebuild(child, build, (*path, key))) for key, child in like.items()]
        return OrderedDict(items) if isinstance(like, OrderedDict) else dict(items)
    if isinstance(like, (list, tuple)):
        children = [rebuild(child, build, (*path, index)) for index, child in enumerate(like)]
        if isinstance(like, list):
            return children
        return type(like)(*children) if hasattr(like, "_fields") else tuple(children)
    return build(path, like)


def _plain_numbers(node: Any) -> bool:
    """A list of Python's own numbers is one array; NumPy's scalars are arrays each."""
    return bool(node) and all(isinstance(n, (int, float)) and not isinstance(n, np.generic) for n in node)


def is_array(value: Any) -> bool:
    return (isinstance(value, np.ndarray) and not isinstance(value, np.ma.MaskedArray)) or is_tensor(value)


def is_tensor(value: Any) -> TypeGuard[Any]:
    """Return whether `value` is a torch tensor; import nothing, since a tensor's owner has imported torch already."""
    if type(value) is np.ndarray:
        return False
    torch = sys.modules.get("torch")
    return torch is not None and issubclass(type(value), torch.Tensor)  # not isinstance, which a class can override


def device_of(leaf: Any) -> str:
    return _device_name(leaf.device) if is_tensor(leaf) else "cpu"


@cache
def _device_name(device: Any) -> str:
    return str(device)


def on_gpu(leaf: Any) -> bool:
    """Return whether the leaf's numbers are for the kernels of a GPU."""
    return is_tensor(leaf) and leaf.device.type == "cuda"


def dtype_name(leaf: Any, path: Path = ()) -> str:
    """The dtype's name without byte order or library: float32 is float32 in NumPy and torch alike."""
    if is_tensor(leaf):
        name, known = _tensor_kind(leaf.dtype, leaf.layout, leaf.device)
    else:
        name = _name(leaf.dtype)
        known = name in FLOATS or leaf.dtype.kind in "iub"
    if not known:
        raise TypeError(f"{_where(path)} has dtype {name}; wanted one of {', '.join(FLOATS)}, or integers for counters")
    return name


@cache
def _tensor_kind(dtype: Any, layout: Any, device: Any) -> tuple[str, bool]:
    """The name of a dense tensor's dtype, and whether updates may have it."""
    if layout is not sys.modules["torch"].strided:
        raise TypeError(f"a tensor of layout {layout} came where a dense one was wanted")
    if device.type not in ("cpu", "cuda"):
        raise TypeError(f"a tensor on {device} came where one on a CPU or CUDA device was wanted; call .cpu()")
    name = str(dtype).removeprefix("torch.")
    return name, name in FLOATS or name == "bool" or name.startswith(("int", "uint"))


def itemsize_of(dtype: str) -> int:
    """Return the bytes of one number, by the name of its dtype."""
    return 2 if dtype == "bfloat16" else np.dtype(dtype).itemsize


@cache
def _name(dtype: np.dtype) -> str:
    return dtype.name


def flat_of(leaf: Any) -> Any:
    """The leaf's numbers in place: `as_numpy` in host memory, a flat tensor on a GPU."""
    if type(leaf) is not np.ndarray and on_gpu(leaf):
        return leaf.detach().reshape(-1)
    return as_numpy(leaf)


def on_host(array: Any) -> Any:
    return array.cpu().numpy() if is_tensor(array) else array


def moved(leaf: Any, device: str) -> Any:
    """The leaf on the device of the clients' updates."""
    if device_of(leaf) == device:
        return leaf
    tensor = leaf if is_tensor(leaf) else sys.modules["torch"].from_numpy(np.ascontiguousarray(leaf))
    return tensor.to(device)


def as_numpy(leaf: Any) -> Array:
    """A view of the leaf's memory as a flat NumPy array if it is contiguous, else as it is; bfloat16 as uint16."""
    array = _viewed(leaf)
    return array.reshape(-1) if array.flags.c_contiguous else array


def as_numpy_matrix(leaf: Any) -> Array:
    """A view of an array's memory with a row a client; flat rows where they are contiguous."""
    array = _viewed(leaf)
    return array.reshape(len(array), -1) if array.flags.c_contiguous else array


def _viewed(leaf: Any) -> Array:
    if is_tensor(leaf):
        if leaf.requires_grad:
            leaf = leaf.detach()
        if leaf.is_neg():
            leaf = leaf.resolve_neg()
        if leaf.dtype is sys.modules["torch"].bfloat16:
            leaf = leaf.view(sys.modules["torch"].uint16)
        return leaf.numpy()
    if _name(leaf.dtype) == "bfloat16":
        leaf = leaf.view(np.uint16)
    return np.asarray(leaf)


def like_leaf(flat: Any, leaf: Any) -> Any:
    """Return `flat`, in the storage of `flat_of`, as an array of the leaf's library, dtype and shape."""
    if is_tensor(leaf):
        if is_tensor(flat):
            return flat.view(leaf.shape)
        torch = sys.modules["torch"]
        return torch.from_numpy(flat.reshape(tuple(leaf.shape))).view(leaf.dtype).to(leaf.device)
    if _name(leaf.dtype) == "bfloat16":
        flat = flat.view(leaf.dtype)
    made = flat.reshape(leaf.shape).astype(leaf.dtype, copy=False)
    if type(leaf) is DLPackArray:
        made = made.view(DLPackArray)
        made.namespace = leaf.namespace
    return made


def widen_bfloat16(bits: Array) -> Array:
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
