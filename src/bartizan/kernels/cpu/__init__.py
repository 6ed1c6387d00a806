"""The kernels in numba: parallel, cached on disk, float64 sums, and the same answer for any number of threads but for
rounding. What each computes is said in `reference`; here is only how.

Loops run over flat buffers with unsigned indices: numba then emits no wrap-around checks and LLVM vectorises them.
"""

from bartizan.kernels.cpu.dense import achlioptas, gaussian
from bartizan.kernels.cpu.inner import dots, gram, squared_norms, weighted_sum
from bartizan.kernels.cpu.rotated import rotated

__all__ = ["achlioptas", "dots", "gaussian", "gram", "rotated", "squared_norms", "weighted_sum"]
