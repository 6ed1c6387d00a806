"""Rules that compare clients with an update that the server trusts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bartizan._util.types import Floats
from bartizan.measure.geometry import Geometry
from bartizan.rules.base import Bounded, Rule, averaged, shortening, smallest


@dataclass(frozen=True)
class MoNNA(Bounded, Rule):
    """Average, by sizes, the M - f clients nearest to the trusted update.

    Nearest neighbour averaging of Farhadkhani et al., 2023, where each node trusts its own update. The trusted update
    is no client: to have it in the average, send it as one too. Withstands f attackers among M >= 2f + 1 clients.

    >>> MoNNA(n_byzantine=1)(Geometry.of([[0.0], [1.0], [90.0]], trusted=[0.5])).tolist()
    [0.5, 0.5, 0.0]
    """

    bytes_per_pair = 0.0
    needs_trusted = True

    def weigh(self, geometry: Geometry) -> Floats:
        nearest = smallest(geometry.trusted_squared_distances, geometry.n_clients - self.n_byzantine)
        return averaged(nearest, geometry)


@dataclass(frozen=True)
class FLTrust(Rule):
    r"""Weigh clients by their cosine with the trusted update, none longer than that.

    :math:`w_i = S_i \mathrm{relu}(c_i) \min(1, \|t\| / \|x_i\|) \,/\, \sum_j S_j \mathrm{relu}(c_j)` with cosines about
    the origin (Cao et al., 2021, equation 4). The paper also lengthens clients shorter than the trusted update; we do
    not: a client that sends next to nothing would get a weight without bound. Cosines and norms are exact also under a
    projection. If no client has a positive cosine, all weights are 0.

    >>> FLTrust()(Geometry.of([[1.0, 0.0], [2.0, 0.0], [-9.0, 0.0]], trusted=[1.0, 0.0])).tolist()
    [0.5, 0.25, 0.0]
    """

    needs_trusted = True
    needs_distances = False

    def weigh(self, geometry: Geometry) -> Floats:
        cosines, length = geometry.trusted_cosines
        if length == 0:
            raise ValueError("FLTrust needs a trusted update with a direction; the one given is zero.")
        scores = geometry.shares * np.maximum(cosines, 0)
        if not scores.any():
            return np.zeros(geometry.n_clients)
        return scores / scores.sum() * shortening(geometry.norms, length)
