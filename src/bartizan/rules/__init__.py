"""Rules: pure functions from a geometry to weights."""

from bartizan.rules.base import Rule
from bartizan.rules.bulyan import Bulyan
from bartizan.rules.centered_clipping import CenteredClipping
from bartizan.rules.clusters import FLAME, ClippedClustering
from bartizan.rules.geometric_median import GeometricMedian
from bartizan.rules.krum import Krum, MultiKrum
from bartizan.rules.mca import MCA
from bartizan.rules.norms import CGE, Mean
from bartizan.rules.spectral import CAF, SpectralDnC
from bartizan.rules.subsets import MDA, SMEA
from bartizan.rules.trusted import FLTrust, MoNNA

__all__ = [
    "CAF",
    "CGE",
    "FLAME",
    "MCA",
    "MDA",
    "SMEA",
    "Bulyan",
    "CenteredClipping",
    "ClippedClustering",
    "FLTrust",
    "GeometricMedian",
    "Krum",
    "Mean",
    "MoNNA",
    "MultiKrum",
    "Rule",
    "SpectralDnC",
]
