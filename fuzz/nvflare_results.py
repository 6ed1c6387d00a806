"""Surface: results of NVFlare sites; one hostile site of six can't end the round, nor move its result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType

from bartizan.nvflare import RobustAggregator
from bartizan.updates.layout import leaves_of
from fuzz.aggregate import warm
from fuzz.draw import Draw
from fuzz.surfaces import ACCEPTED, COMPARED, Surface, fair, require
from fuzz.updates.clients import DTYPES, clean_update, hostile_update, leaf, numbers, pack, stored, widened
from fuzz.updates.malformed import BAD

SITES = 6
RULES = ("multi-krum", "nnm >> trimmed-mean", "trimmed-mean", "krum")
STEPS: list[Any] = [3, 10**400, 0, -1, True, None, "3", [3], float("nan"), float("inf"), np.float32(3), 1e-320]
METRICS: list[Any] = [{}, None, {"loss": 10**400}, {"loss": float("nan")}, {"loss": -1e300, 7: "x"}, {"other": 1}]
KINDS = (ParamsType.FULL, ParamsType.DIFF, None)


def case(data: bytes) -> str:
    draw = Draw(data)
    form, dtype, p = draw.pick(("dict", "state dict")), draw.pick(DTYPES), 3 + draw.below(200)
    kind, rule = draw.pick(KINDS[:2]), draw.pick(RULES)
    sizes: dict[str, Any] = {"sizes": "reported", "size_cap": 9} if draw.chance(3) else {}
    aggregator = RobustAggregator(rule, 1, **sizes)
    x = stored(numbers(draw, SITES, p), dtype)
    sent = pack(leaf(stored(numbers(draw, 1, p)[0], dtype), form, dtype), form)
    aggregator._round.model, aggregator._round.number = sent, 4
    for m in range(1, SITES):
        params = clean_update(draw, x[m], form, dtype)
        _accept(aggregator, m, FLModel(kind, params, metrics={"loss": m / 10}, current_round=4), 5)
    hostile = FLModel(kind, {})
    hostile.params, known = hostile_update(draw, x[0], form, dtype)
    hostile.params_type = kind if not draw.chance(4) else draw.pick(KINDS)
    hostile.metrics, hostile.current_round = draw.pick(METRICS), draw.pick([4, 4, 4, None, 3, "4", -1])
    _accept(aggregator, 0, hostile, draw.pick(STEPS))
    out = aggregator.aggregate_model()
    (told,) = aggregator._rounds
    require(all(map(fair, [*told["quarantined"].values(), *told["failed"].values()])), f"reasons: {told}")
    out_of_it = {*told["quarantined"], *told["failed"]}
    require(known != BAD or "site-0" in out_of_it, "a result that must be quarantined was accepted")
    require(_shapes(out.params) == _shapes(sent), "the result has other shapes than the model")
    if out.metrics and "loss" in out.metrics and rule != "krum":  # the median of one site is its own
        require(0.1 <= out.metrics["loss"] <= 0.5, "one site moved the median beyond all honest ones")
    if told["refused"] or set(told["quarantined"]) - {"site-0"}:
        return ACCEPTED
    honest = widened(x[1:], dtype)
    slack = 0.02 * max(np.abs(honest).max(), 1e-30)
    floats = np.concatenate([_numbers(array) for array in leaves_of(out.params).values()])
    among = (floats >= honest.min() - slack) & (floats <= honest.max() + slack)
    require(among.all() or "site-0" not in out_of_it, "the result lies outside of all updates that were accepted")
    return COMPARED


def _accept(aggregator: RobustAggregator, m: int, model: FLModel, steps: Any) -> bool:
    model.meta = {"client_name": f"site-{m}", "NUM_STEPS_CURRENT_ROUND": steps}
    return aggregator.accept_model(model)


def _shapes(update: Any) -> dict[Any, tuple[int, ...]]:
    return {path: tuple(array.shape) for path, array in leaves_of(update).items()}


def _numbers(array: Any) -> np.ndarray:
    """The floats of an entry; nothing for integers."""
    array = array.detach().double().numpy() if hasattr(array, "detach") and array.is_floating_point() else array
    return np.asarray(array, np.float64).ravel() if "float" in str(array.dtype) else np.empty(0)


def surface(folder: Path) -> Surface:
    seeds = [b"", *(bytes([n]) * 40 for n in range(1, 40))]
    return Surface(case, seeds, warm=warm)
