"""The only code that touches p coordinates.

`reference` is the definition in NumPy and the tests' only judge; `cpu` is its fast twin in numba and `gpu` in Triton,
with the same signatures. Every kernel adds what one block of columns contributes to `out`, so a walk over the blocks
is a sum.
"""
