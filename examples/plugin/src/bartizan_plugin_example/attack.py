"""An attack: a function from the honest updates to those of the attackers, for NumPy arrays and torch tensors alike."""


def scaled_noise(honest, count, rng, *, scale=10.0):
    """Each attacker sends a random honest update, `scale` times as long and reversed."""
    chosen = rng.integers(len(honest), size=count)
    return -scale * honest[chosen.tolist()]
