"""The geometry of measured clients, with a second look where the first lost the digits in which they differ."""

from __future__ import annotations

from bartizan._util.types import Floats
from bartizan.measure import Sketch
from bartizan.measure.geometry import Geometry
from bartizan.measure.measurements import Measurements
from bartizan.source import Roster, Source


def geometry_of(
    source: Source,
    measured: Measurements,
    looks: dict[int, Measurements],
    roster: Roster | None = None,
    history: tuple[float, ...] = (),
) -> Geometry:
    """The geometry of measured clients; where digits are short, the source is measured again about the medoid.

    `looks` keeps the last such measurement: as clients leave the round, the same one is asked for again.
    """

    def gram_about(row: int) -> Floats:
        client, clients = measured.clients[row], measured.clients
        if client not in looks or not set(clients) <= set(looks[client].clients):
            looks.clear()
            again = source.measure(measured.sketch, measured.seed, clients=clients, about=client, scale=measured.scale)
            looks[client] = again.on_host()
        gram: Floats = looks[client].of(clients).gram
        return gram

    sizes = None if roster is None or roster.sizes is None else roster.sizes[list(measured.clients)]
    return Geometry.measured(measured, gram_about, sizes=sizes, seed=measured.seed, history=history)


def geometry_by(sketch: Sketch, source: Source, seed: int = 0) -> Geometry:
    """The geometry of all clients of a source, none of them quarantined for its numbers."""
    return geometry_of(source, source.measure(sketch, seed).on_host(), {})
