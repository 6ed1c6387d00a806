"""What touches p coordinates, or M x M numbers: `reference` and `weigh_reference` define it in NumPy; `cpu`, `dense`,
`weigh` and their neighbours do it fast in numba, `gpu` in Triton. One signature, picked by where the data is.
"""
