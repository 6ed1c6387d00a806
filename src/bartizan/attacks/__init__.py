"""What attackers send, pure functions of the honest updates, and what they train on."""

from bartizan.attacks.adaptive import (
    blind_collision,
    null_space,
    null_space_mirror,
    observer,
    optimised_null_space,
    replay,
)
from bartizan.attacks.alie_ipm import a_little_is_enough, inner_product_manipulation
from bartizan.attacks.malformed import garbage, infinity, not_a_number
from bartizan.attacks.mimic import mimic, none
from bartizan.attacks.min_max import min_max, min_sum
from bartizan.attacks.optimised import optimised_alie, optimised_ipm
from bartizan.attacks.parameters import needs, needs_aggregator
from bartizan.attacks.pdr_paper import fall_of_empires, gaussian, little_is_enough, sign_flip
from bartizan.attacks.poison import Backdoor, LabelFlip, Poison

__all__ = [
    "Backdoor",
    "LabelFlip",
    "Poison",
    "a_little_is_enough",
    "blind_collision",
    "fall_of_empires",
    "garbage",
    "gaussian",
    "infinity",
    "inner_product_manipulation",
    "little_is_enough",
    "mimic",
    "min_max",
    "min_sum",
    "needs",
    "needs_aggregator",
    "none",
    "not_a_number",
    "null_space",
    "null_space_mirror",
    "observer",
    "optimised_alie",
    "optimised_ipm",
    "optimised_null_space",
    "replay",
    "sign_flip",
]
