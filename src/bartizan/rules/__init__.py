"""Rules: pure functions from a geometry to weights."""

from bartizan.rules.base import Rule
from bartizan.rules.bulyan import Bulyan
from bartizan.rules.centered_clipping import CenteredClipping
from bartizan.rules.cge import CGE
from bartizan.rules.clipped_clustering import ClippedClustering
from bartizan.rules.flame import FLAME
from bartizan.rules.geometric_median import GeometricMedian
from bartizan.rules.krum import Krum, MultiKrum
from bartizan.rules.mca import MCA
from bartizan.rules.mda import MDA
from bartizan.rules.mean import Mean
from bartizan.rules.smea import SMEA
from bartizan.rules.spectral import CAF, SpectralDnC
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
