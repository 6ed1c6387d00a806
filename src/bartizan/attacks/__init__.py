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
from bartizan.attacks.data_poisoning import (
    Backdoor,
    DistributedBackdoor,
    LabelFlip,
    Poison,
    SemanticBackdoor,
    Triggered,
)
from bartizan.attacks.fang import fang_krum, fang_trim
from bartizan.attacks.formulas import (
    a_little_is_enough,
    alie_over_time,
    fall_of_empires,
    hybrid_sparse,
    inner_product_manipulation,
    little_is_enough,
    mimic,
    none,
    relocated_orthogonal_perturbation,
    sign_flip,
)
from bartizan.attacks.min_max import min_max, min_sum
from bartizan.attacks.noise import garbage, gaussian, infinity, not_a_number
from bartizan.attacks.optimised import edge_riding, optimised_alie, optimised_ipm
from bartizan.attacks.over_time import flood, send_old, wait_and_strike
from bartizan.attacks.parameters import needs

__all__ = [
    "ATTACKS",
    "POISONS",
    "Backdoor",
    "DistributedBackdoor",
    "LabelFlip",
    "Poison",
    "SemanticBackdoor",
    "Triggered",
    "a_little_is_enough",
    "alie_over_time",
    "attack",
    "blind_collision",
    "edge_riding",
    "fall_of_empires",
    "fang_krum",
    "fang_trim",
    "flood",
    "garbage",
    "gaussian",
    "hybrid_sparse",
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
    "relocated_orthogonal_perturbation",
    "replay",
    "send_old",
    "sign_flip",
    "wait_and_strike",
]
