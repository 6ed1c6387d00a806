"""Byzantine-robust aggregation for federated learning, for the price of a plain mean."""

from bartizan import attacks, sketch
from bartizan.aggregate import Aggregator, aggregate
from bartizan.buffer import Buffer
from bartizan.errors import BadClientError, TooFewClientsError
from bartizan.judge.reputation import Reputation, Suspect
from bartizan.measure import Achlioptas, Exact, Gaussian, Rotated
from bartizan.measure.geometry import Geometry
from bartizan.registry import rule
from bartizan.round import Round
from bartizan.rules import (
    CAF,
    CGE,
    FLAME,
    MCA,
    MDA,
    SMEA,
    Bulyan,
    CenteredClipping,
    ClippedClustering,
    FLTrust,
    GeometricMedian,
    Krum,
    Mean,
    MoNNA,
    MultiKrum,
    SpectralDnC,
    coordinatewise,
)
from bartizan.rules.coordinatewise import MeaMed, Median, TrimmedMean
from bartizan.rules.preaggregators import ARC, NNM, Bucketing, Clipping, NormFilter
from bartizan.source import Aggregation
from bartizan.updates import files

__version__ = "0.1.0"

__all__ = [
    "ARC",
    "CAF",
    "CGE",
    "FLAME",
    "MCA",
    "MDA",
    "NNM",
    "SMEA",
    "Achlioptas",
    "Aggregation",
    "Aggregator",
    "BadClientError",
    "Bucketing",
    "Buffer",
    "Bulyan",
    "CenteredClipping",
    "ClippedClustering",
    "Clipping",
    "Exact",
    "FLTrust",
    "Gaussian",
    "GeometricMedian",
    "Geometry",
    "Krum",
    "MeaMed",
    "Mean",
    "Median",
    "MoNNA",
    "MultiKrum",
    "NormFilter",
    "Reputation",
    "Rotated",
    "Round",
    "SpectralDnC",
    "Suspect",
    "TooFewClientsError",
    "TrimmedMean",
    "aggregate",
    "attacks",
    "coordinatewise",
    "files",
    "rule",
    "sketch",
]
