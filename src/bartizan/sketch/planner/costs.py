"""The cost model: seconds of each stage as a sum of a few products of M, p, k and the clients that get weight."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from bartizan.sketch import Exact, Projection, Sketch


@dataclass(frozen=True)
class Costs:
    """Seconds, each for one unit of work, on one device and for one dtype.

    Every stage is linear in these, so that calibration is a least-squares fit and a plan is a sum; what the terms
    leave out (caches, a second look at near-equal updates) is said in `docs/guides/choosing.md`.
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
    cell: float
    """A cell of a sketch, cleared and added up: M k of them."""
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
        k = sketch.k
        return fixed + self.draw * p + self.rotate * M * p + self.cell * M * k + self.sketch_pair * M * M * k

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


# float32, to choose by where nothing was measured, not to promise by. "cpu" is one calibration of two Xeon cores, and
# "cuda" is put together from the times in docs/explanation/speed.md.
TYPICAL = {
    "cpu": Costs(
        device="cpu",
        dtype="float32",
        machine="typical: two cores of a server",
        call=0.000303292,
        client=1.95221e-06,
        read=3.43439e-10,
        draw=7.63373e-10,
        rotate=4.41129e-10,
        cell=3.5e-09,
        sketch_pair=1.9e-11,
        gram=6.80681e-10,
        gram_pair=1.88334e-11,
        write=8.05072e-10,
        combine=2.46395e-10,
        choose=1.95176e-05,
        choose_pair=6.38578e-10,
        iterate=3.39033e-05,
        iterate_pair=3.56565e-09,
    ),
    "cuda": Costs(
        device="cuda",
        dtype="float32",
        machine="typical: an H200",
        call=0.0005,
        client=2e-06,
        read=1.03e-12,
        draw=0,
        rotate=1.37e-12,
        cell=1e-11,
        sketch_pair=1e-13,
        gram=1.8e-12,
        gram_pair=1.86e-14,
        write=3e-12,
        combine=1.04e-12,
        choose=0.00013,
        choose_pair=2.3e-09,
        iterate=0.00014,
        iterate_pair=8e-09,
    ),
}
