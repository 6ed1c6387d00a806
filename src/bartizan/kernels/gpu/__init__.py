"""Kernels for tensors on a GPU in Triton; `reference` defines what each of them computes.

They take a `DeviceRows` where their twins in `cpu` take `Rows`, and tensors on its device for everything else: the
origin in float32 or float64, results in float64. None of them waits for the device.
"""

from bartizan._util.extras import missing_extra

try:
    import torch  # noqa: F401
    import triton  # noqa: F401
except ModuleNotFoundError as missing:
    raise missing_extra("bartizan's GPU kernels need torch and Triton", "gpu") from missing

from bartizan.kernels.gpu.columnwise import meamed, median, mixed, trimmed_mean
from bartizan.kernels.gpu.combine import weighted_sum
from bartizan.kernels.gpu.dense import achlioptas, gaussian
from bartizan.kernels.gpu.device_rows import DeviceRows
from bartizan.kernels.gpu.fallback import copied
from bartizan.kernels.gpu.pairs import gram
from bartizan.kernels.gpu.placed import Placed
from bartizan.kernels.gpu.rotation import rotated
from bartizan.kernels.gpu.squared_norms import dots, squared_norms

__all__ = [
    "DeviceRows",
    "Placed",
    "achlioptas",
    "copied",
    "dots",
    "gaussian",
    "gram",
    "meamed",
    "median",
    "mixed",
    "rotated",
    "squared_norms",
    "trimmed_mean",
    "weighted_sum",
]
