"""The cost model: seconds of each stage as a sum of a few products of M, p, k and the clients that get weight."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from bartizan.sketch import Exact, Projection, Sketch


@dataclass(frozen=True)
class Costs:
    """Seconds, each for one unit of work, on one device and for one dtype.

    Every stage is linear in these, so that calibration is a least-squares fit and a plan is a sum; what the terms
    leave out (caches, a second look at near-equal updates) is said in `docs/planner.md`.
    """

    device: str
    dtype: str
    machine: str
    """What it was measured on."""
    call: float
    """A call, whatever comes with it."""
    client: float
    """A client's container, looked at once."""
    read: float
    """A number, read once: M p of them are one read."""
    draw: float
    """A coordinate's randomness, which all clients share."""
    rotate: float
    """A number, put through `Rotated`."""
    sketch_pair: float
    """A product in the Gram matrix of the sketches, M^2 k of them."""
    gram: float
    """A number, read for the exact Gram matrix."""
    gram_pair: float
    """A product in the exact Gram matrix, M^2 p of them."""
    write: float
    """A coordinate of the answer."""
    combine: float
    """A number of a client that got weight."""
    choose: float
    """Weighing, for a rule that sorts distances (Krum)."""
    choose_pair: float
    """... and for each pair of clients."""
    iterate: float
    """Weighing, for a rule that iterates (the geometric median)."""
    iterate_pair: float
    """... and for each pair of clients."""

    def look(self, sketch: Sketch | None, clients: int, dim: int) -> float:
        """Seconds until the geometry is known; None is for rules that want norms only."""
        M, p = clients, dim
        fixed = self.call + self.client * M
        if sketch is None:
            return fixed + self.read * M * p
        if isinstance(sketch, Exact):
            return fixed + self.gram * M * p + self.gram_pair * M * M * p
        if not isinstance(sketch, Projection):
            raise TypeError(f"There are no costs of {sketch!r}: wanted Exact() or Rotated(k=...).")
        return fixed + self.draw * p + self.rotate * M * p + self.sketch_pair * M * M * sketch.k

    def weigh(self, clients: int, iterates: bool) -> float:
        fixed, pair = (self.iterate, self.iterate_pair) if iterates else (self.choose, self.choose_pair)
        return fixed + pair * clients**2

    def combined(self, chosen: int, dim: int) -> float:
        return self.write * dim + self.combine * chosen * dim

    def one_read(self, clients: int, dim: int) -> float:
        """The unit of every time here."""
        return self.read * clients * dim

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


# float32, to choose by where nothing was measured, not to promise by. "cpu" is one calibration of two Xeon cores.
# "cuda" was never calibrated: its costs per number follow a prototype's times on an H200, the rest is estimated.
TYPICAL = {
    "cpu": Costs(
        device="cpu",
        dtype="float32",
        machine="typical: two cores of a server",
        call=3.26823e-4,
        client=2.3373e-5,
        read=1.84219e-10,
        draw=1.45192e-9,
        rotate=4.59741e-10,
        sketch_pair=4.24351e-11,
        gram=2.88454e-10,
        gram_pair=1.19978e-11,
        write=1.75674e-9,
        combine=2.74015e-10,
        choose=4.19568e-5,
        choose_pair=1.17464e-8,
        iterate=3.41353e-4,
        iterate_pair=5.98496e-9,
    ),
    "cuda": Costs(
        device="cuda",
        dtype="float32",
        machine="estimated: an H200, never calibrated",
        call=3e-4,
        client=2e-6,
        read=1.04e-12,
        draw=0.0,
        rotate=1.35e-12,
        sketch_pair=1e-13,
        gram=1.5e-12,
        gram_pair=8.9e-14,
        write=3e-12,
        combine=1.1e-12,
        choose=5e-5,
        choose_pair=3e-8,
        iterate=5e-4,
        iterate_pair=3e-8,
    ),
}
