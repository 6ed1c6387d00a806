"""What liars send: pure functions of the honest updates."""

from bartizan.attacks.paper import fall_of_empires, gaussian, little_is_enough, sign_flip

__all__ = ["fall_of_empires", "gaussian", "little_is_enough", "sign_flip"]
