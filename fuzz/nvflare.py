"""Surface: results of NVFlare sites, compared with the mean of those that are known to be sound."""

from unittest.mock import patch

import numpy as np
import torch
from hypothesis import strategies as st
from nvflare.apis.dxo import DXO
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.utils.fl_model_utils import FLModelUtils

from bartizan.nvflare import RobustAggregator
from fuzz.aggregate import flat
from fuzz.surfaces import ACCEPTED, COMPARED, RefusedError, Surface, fair, require
from fuzz.updates.clients import CLEAN, clients, leaf, pack, stored
from fuzz.updates.malformed import BAD
from fuzz.values import JUNK, NUMBERS, changed, pick, rarely

RULES = [
    *({"rule": "mean"}, {"rule": "multi-krum", "n_byzantine": 1}, {"rule": "geometric-median"}, {"rule": "median"}),
    *({"rule": "nnm >> mean", "n_byzantine": 1}, {"rule": "mean", "sizes": "reported", "size_cap": 100.0}),
]
ROUNDING = {"float64": (1e-9, 1e-322), "float32": (1e-5, 1e-44), "float16": (0.01, 1e-6), "bfloat16": (0.02, 1e-39)}
"""Relative and smallest absolute error of a mean in each dtype."""
CLAIMS = [*NUMBERS, 2**70, "7", None, True]
KINDS = [ParamsType.FULL, ParamsType.FULL, ParamsType.DIFF]
ODD = {
    "metrics": JUNK,
    "current_round": st.sampled_from([0, 2, 10**400, "1", None]),
    "params_type": st.sampled_from([ParamsType.FULL, ParamsType.DIFF, None]),
}
NAMES = ["\x1b[31m", "y" * 5000, "", "\ud800"]


@st.composite
def rounds(draw):
    """Draw what each site sends and whether it must be left out, and the settings of the aggregator."""
    sent, settings, kind, messy = draw(clients(most=9)), pick(draw, RULES), pick(draw, KINDS), draw(st.booleans())
    form = sent.form if sent.form in ("dict", "state dict") else "dict"
    sites = []
    for m, (update, state) in enumerate(zip(sent.sent, sent.known, strict=True)):
        name = f"site-{m}" if not draw(rarely(20)) else pick(draw, NAMES) + str(m)
        if form != sent.form:  # a site that sends no dict of arrays
            row = leaf(stored(sent.x[m], sent.dtype), "dict", sent.dtype)
            update, state = (update, BAD) if draw(rarely(6)) else (pack(row, form), CLEAN)
        if draw(rarely(12)):
            sites.append((name, None, BAD))  # it never answers
        else:
            sites.append((name, *_answer(draw, name, update, state, kind, settings, messy)))
    return {"sent": sent, "settings": settings, "kind": kind, "form": form, "sites": sites}


def _answer(draw, site, update, state, kind, settings, messy):
    """Draw the result that a site sends, or the content of its message, and whether it must be left out."""
    meta = {"client_name": site, "NUM_STEPS_CURRENT_ROUND": 3}
    result = FLModel(kind, {"w": np.zeros(1)}, metrics={"loss": 0.5}, meta=meta, current_round=1)
    result.params = update
    if messy and draw(rarely(4)):
        meta["NUM_STEPS_CURRENT_ROUND"] = pick(draw, CLAIMS)
        state = state if "sizes" not in settings else "either"
    if messy and draw(rarely(4)):
        name, values = pick(draw, list(ODD.items()))
        state = "either"
        setattr(result, name, draw(values))
    if not draw(rarely(3)):
        return result, state
    if result.params is None and result.metrics is None:
        result.metrics = {}  # NVFlare sends no result without both
    with patch.object(DXO, "validate", return_value=""):  # a site need not
        content = dict(FLModelUtils.to_shareable(result))
    return (draw(changed(content)), "either") if messy and draw(st.booleans()) else (content, state)


def check(sent, settings, kind, form, sites):
    """Pass the sites' results on as a controller does, and close the round."""
    aggregator = RobustAggregator(**settings)
    own = stored(np.zeros(sent.x.shape[1]), sent.dtype)
    aggregator._round.model, aggregator._round.number = pack(leaf(own, form, sent.dtype), form), 1
    for site, result, _ in sites:
        aggregator._round.asked.add(site)
        if isinstance(result, FLModel):
            require(type(aggregator.accept_model(result)) is bool, "accept_model must return a bool")
        elif result is not None:
            shareable = Shareable()
            shareable.update(result if isinstance(result, dict) else {"DXO": result})
            with patch.object(aggregator._job, "sender", return_value=site):
                require(type(aggregator.accept(shareable, FLContext())) is bool, "accept must return a bool")
    return _closed(aggregator, sent, {site: state for site, _, state in sites}, form, kind, settings)


def _closed(aggregator, clients, known, form, kind, settings):
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


def surface(folder):
    torch.set_num_threads(1)
    return Surface(lambda case: check(**case), {"case": rounds()})
