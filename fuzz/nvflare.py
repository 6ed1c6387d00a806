"""Surface: results of NVFlare sites, compared with the mean of those that are known to be sound."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from nvflare.apis.dxo import DXO
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.utils.fl_model_utils import FLModelUtils

from bartizan.nvflare import RobustAggregator
from fuzz.aggregate import flat
from fuzz.draw import Draw
from fuzz.mutate import JUNK, mutated_value
from fuzz.surfaces import ACCEPTED, COMPARED, RefusedError, Surface, fair, require
from fuzz.updates.clients import CLEAN, draw_clients, leaf, pack, stored
from fuzz.updates.malformed import BAD

RULES: list[dict[str, Any]] = [
    *({"rule": "mean"}, {"rule": "multi-krum", "n_byzantine": 1}, {"rule": "geometric-median"}, {"rule": "median"}),
    *({"rule": "nnm >> mean", "n_byzantine": 1}, {"rule": "mean", "sizes": "reported", "size_cap": 100.0}),
]
ROUNDING = {"float64": (1e-9, 1e-322), "float32": (1e-5, 1e-44), "float16": (0.01, 1e-6), "bfloat16": (0.02, 1e-39)}
"""Relative and smallest absolute error of a mean in each dtype."""
NUMBERS = [3, 0, -1, 2**70, 0.5, float("nan"), float("inf"), "7", None, True, [1], 1e-320]


def case(data: bytes) -> str:
    draw = Draw(data)
    clients = draw_clients(draw, most=9)
    form = clients.form if clients.form in ("dict", "state dict") else "dict"
    own = stored(np.zeros(clients.x.shape[1]), clients.dtype)
    model = pack(leaf(own, form, clients.dtype), form)
    settings = draw.pick(RULES)
    aggregator = RobustAggregator(**settings)
    aggregator._round.model, aggregator._round.number = model, 1
    kind = draw.pick([ParamsType.FULL, ParamsType.FULL, ParamsType.DIFF])
    known: dict[str, str] = {}
    for m, sent in enumerate(clients.sent):
        site = f"site-{m}" if not draw.chance(20) else draw.pick(["\x1b[31m", "y" * 5000, "", "\ud800"]) + str(m)
        aggregator._round.asked.add(site)
        if form != clients.form:  # a site that sends no dict of arrays
            sent, state = (sent, BAD) if draw.chance(6) else (pack(_row(clients, m), form), CLEAN)
        else:
            state = clients.known[m]
        if draw.chance(12):
            known[site] = BAD
            continue  # it never answers
        known[site] = _answered(draw, aggregator, site, sent, state, kind, settings)
    return _closed(aggregator, clients, known, form, kind, settings)


def _row(clients: Any, m: int) -> Any:
    return leaf(stored(clients.x[m], clients.dtype), "dict", clients.dtype)


def _answered(
    draw: Draw, aggregator: RobustAggregator, site: str, sent: Any, state: str, kind: ParamsType, settings: Any
) -> str:
    """Pass a site's result on as a controller does; return whether it must be left out."""
    meta: dict[str, Any] = {"client_name": site, "NUM_STEPS_CURRENT_ROUND": 3}
    if draw.chance(6):
        meta["NUM_STEPS_CURRENT_ROUND"] = draw.pick(NUMBERS)
        state = state if "sizes" not in settings else "either"
    result = FLModel(kind, {"w": np.zeros(1)}, metrics={"loss": 0.5}, meta=meta, current_round=1)
    result.params = sent
    if draw.chance(8):
        result.metrics, state = draw.pick(JUNK)(), "either"
    if draw.chance(12):
        result.current_round, state = draw.pick([0, 2, 10**400, "1", None]), "either"
    if draw.chance(12):
        result.params_type, state = draw.pick([ParamsType.FULL, ParamsType.DIFF, None]), "either"
    if not draw.chance(3):
        require(type(aggregator.accept_model(result)) is bool, "accept_model must return a bool")
        return state
    if result.params is None and result.metrics is None:
        result.metrics = {}  # NVFlare sends no result without both
    with patch.object(DXO, "validate", return_value=""):  # a site need not
        content: Any = dict(FLModelUtils.to_shareable(result))
    if draw.chance(2):
        content, state = mutated_value(content, draw), "either"
    shareable = Shareable()
    shareable.update(content if isinstance(content, dict) else {"DXO": content})
    with patch.object(aggregator._job, "sender", return_value=site):
        require(type(aggregator.accept(shareable, FLContext())) is bool, "accept must return a bool")
    return state


def _closed(
    aggregator: RobustAggregator, clients: Any, known: dict[str, str], form: str, kind: ParamsType, settings: Any
) -> str:
    out = aggregator.aggregate_model()
    line = aggregator._rounds[-1]
    gone = {**line["quarantined"], **line["failed"]}
    require(all(map(fair, gone.values())), f"reasons: {str(gone)[:300]}")
    clean = [m for m, state in enumerate(known.values()) if state == CLEAN]
    update = flat(out.params, form)
    require(update.shape == clients.x.shape[1:] and np.isfinite(update).all(), "the result is not a finite model")
    if line["refused"]:
        require(not update.any(), "a refused round must keep the model")
        require(2 * len(clean) <= len(known) or settings.get("n_byzantine"), f"a clean majority was refused: {line}")
        raise RefusedError
    if 2 * len(clean) <= len(known):
        return ACCEPTED
    names = list(known)
    require({names[m] for m in clean}.isdisjoint(gone), "clean sites were left out")
    bad = {name for name, state in known.items() if state == BAD}
    require(bad <= set(gone), f"bad sites took part: {len(bad - set(gone))} of {len(bad)}")
    if settings != {"rule": "mean"} or set(known.values()) - {CLEAN, BAD}:
        return ACCEPTED
    rows = clients.x[clean]
    relative, smallest = ROUNDING[clients.dtype]
    off = np.abs(update - rows.mean(axis=0)).max()
    require(off <= relative * np.abs(rows).max() + smallest, "the model is not the sites' mean")
    return COMPARED


def surface(folder: Path) -> Surface:
    torch.set_num_threads(1)
    seeds = [b"", *(bytes([n]) * 60 for n in range(1, 30)), bytes(range(120))]
    return Surface(case, seeds)
