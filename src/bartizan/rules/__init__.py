"""Rules: pure functions from a geometry to weights."""

from bartizan.rules.averages import CGE, Mean
from bartizan.rules.base import Rule
from bartizan.rules.clipped_averages import CenteredClipping, ClippedClustering
from bartizan.rules.compact_subsets import MDA, SMEA
from bartizan.rules.krum import Bulyan, Krum, MultiKrum
from bartizan.rules.m_estimators import MCA, GeometricMedian
from bartizan.rules.spectral import CAF, SpectralDnC
from bartizan.rules.trusted import FLTrust, MoNNA

__all__ = [
    "CAF",
    "CGE",
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
