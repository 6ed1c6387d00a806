"""What sketch="auto" means: a choice between exact distances and a projection, by a small table of measured costs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bartizan.measure.sketches import Exact, Norms, Rotated, Sketch

USUAL_K = 4096  # of a sketch that is named or chosen without a dimension


@dataclass(frozen=True)
class StageCosts:
    """Costs of the stages on a device, in units of reading one float32 number from memory.

    With M clients, p coordinates and k dimensions one read of the updates costs M p.
    """

    gram: float  # a number in the exact Gram matrix: M p of them
    gram_pair: float  # a product in the exact Gram matrix: M^2 p
    draw: float  # the random signs of a coordinate, which all clients share: p
    rotate: float  # a number that `Rotated` projects: M p
    cell: float  # a cell of a sketch: M k
    sketch_pair: float  # a product in the Gram matrix of the sketches: M^2 k
    write: float  # a coordinate of the result: p
    combine: float  # a number of a client with positive weight: p for each

    def exact(self, M: int, p: int) -> float:
        """Return the cost of the Gram matrix of all coordinates."""
        return self.gram * M * p + self.gram_pair * M * M * p

    def projected(self, M: int, p: int, k: int) -> float:
        """Return the cost of the sketches of `Rotated(k)` and their Gram matrix."""
        return self.draw * p + self.rotate * M * p + self.cell * M * k + self.sketch_pair * M * M * k

    def combined(self, n_weighted: int, p: int) -> float:
        """Return the cost of the weighted sum of `n_weighted` clients."""
        return self.write * p + self.combine * n_weighted * p


# The CPU's are the middle of two servers (Xeon at 2.8 GHz, Zen 4), two cores each; the GPU's are an H200's.
COSTS = {
    "cpu": StageCosts(
        gram=2.8, gram_pair=0.09, draw=3.0, rotate=2.4, cell=16.0, sketch_pair=0.055, write=3.5, combine=1.2
    ),
    "cuda": StageCosts(
        gram=1.75, gram_pair=0.018, draw=0.0, rotate=1.33, cell=9.7, sketch_pair=0.097, write=2.9, combine=1.0
    ),
}


def costs_of(device: str) -> StageCosts:
    """Return the costs on "cpu" or "cuda"."""
    if device not in COSTS:
        raise ValueError(f"device must be 'cpu' or 'cuda', got {device!r}.")
    return COSTS[device]


def exact_is_faster(n_clients: int, dim: int, device: str = "cpu", k: int = USUAL_K) -> bool:
    """Return whether exact distances of this number of clients and coordinates cost less than those of `Rotated(k)`.

    >>> exact_is_faster(8, 10_000), exact_is_faster(200, 1_000_000)
    (True, False)
    """
    costs = costs_of(device)
    return k >= dim or costs.exact(n_clients, dim) <= costs.projected(n_clients, dim, k)


def settled(
    sketch: Sketch | str, needs_distances: bool, exact: Callable[[], bool], projection: Sketch = Rotated()
) -> Sketch:
    """The sketch that a source measures by: norms alone if the rule needs no distances, else the one given.

    This is the one meaning of "auto": exact distances where the source says that they cost no more, else a projection.
    """
    if not needs_distances:
        return Norms()
    if isinstance(sketch, Sketch):
        return sketch
    return Exact() if exact() else projection
