"""The only code that touches p coordinates, and the loops over M x M numbers.

`reference` is the definition in NumPy and the tests' only judge; `cpu` is its fast twin in numba, with the same
signatures. Every kernel adds what one block of columns contributes to `out`, so a walk over the blocks is a sum.
`weigh_reference` judges `weigh`, `repeated_krum` and `sandwich` in the same way: what lies between sketch and combine.
"""
