"""Attacks: functions from the honest updates to those of the attackers, and changes of the attackers' data."""

from bartizan.attacks.adaptive import (
    blind_collision,
    null_space,
    null_space_mirror,
    observer,
    optimised_null_space,
    replay,
)
from bartizan.attacks.by_name import ATTACKS, POISONS, attack, poison
from bartizan.attacks.data_poisoning import Backdoor, LabelFlip, Poison
from bartizan.attacks.formulas import (
    a_little_is_enough,
    fall_of_empires,
    inner_product_manipulation,
    little_is_enough,
    mimic,
    none,
    sign_flip,
)
from bartizan.attacks.min_max import min_max, min_sum
from bartizan.attacks.noise import garbage, gaussian, infinity, not_a_number
from bartizan.attacks.optimised import optimised_alie, optimised_ipm
from bartizan.attacks.parameters import needs

__all__ = [
    "ATTACKS",
    "POISONS",
    "Backdoor",
    "LabelFlip",
    "Poison",
    "a_little_is_enough",
    "attack",
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
    "none",
    "not_a_number",
    "null_space",
    "null_space_mirror",
    "observer",
    "optimised_alie",
    "optimised_ipm",
    "optimised_null_space",
    "poison",
    "replay",
    "sign_flip",
]
