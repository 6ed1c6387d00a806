"""The bounds of the paper's theorems as functions, and experiments that measure them: `python -m studies theory`."""
