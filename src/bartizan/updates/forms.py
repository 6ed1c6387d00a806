"""The form of an update: the kinds of its containers and arrays, of which the result takes the most usual."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bartizan._util.types import Floats
from bartizan.updates.layout import is_tensor


def form_of(update: Any, *, in_order: bool = True) -> Any:
    """Return the kinds of containers and arrays that a plain update is made of, to compare and to count."""
    if type(update) is np.ndarray:
        return update.dtype.str
    if isinstance(update, Mapping):
        items = [(_form_of_key(key), form_of(child, in_order=in_order)) for key, child in update.items()]
        return type(update), tuple(items) if in_order else frozenset(items)
    if isinstance(update, (list, tuple)):
        return type(update), tuple([form_of(child, in_order=in_order) for child in update])
    form = "tensor" if is_tensor(update) else update.dtype.str
    namespace = getattr(update, "namespace", None)
    return form if namespace is None else (form, id(namespace))


def _form_of_key(key: Any) -> Any:
    """Return the key with its type; of a client's own class, which may compare as it likes, its identity."""
    kind = type(key)
    return (kind, key) if kind is str or kind is int or kind is bool else (kind, id(key))


def usual_container(containers: Sequence[Any], weights: Floats) -> Any:
    """Return a plain update of the form that has most weight, and of the order of keys that has most of it.

    Updates of weight 0 are not looked at, unless all are.
    """
    if len(set(map(id, containers))) == 1:  # rows of one matrix
        return containers[0]
    weights = weights if weights.any() else np.ones(len(containers))
    first: dict[Any, Any] = {}
    ordered: dict[Any, float] = {}
    for row in np.flatnonzero(weights).tolist():
        form = form_of(containers[row])
        first.setdefault(form, containers[row])
        ordered[form] = ordered.get(form, 0.0) + float(weights[row])
    if len(first) > 1:
        kinds = {form: form_of(one, in_order=False) for form, one in first.items()}
        total = dict.fromkeys(kinds.values(), 0.0)
        for form, weight in ordered.items():
            total[kinds[form]] += weight
        usual = max(total, key=total.__getitem__)
        ordered = {form: weight for form, weight in ordered.items() if kinds[form] == usual}
    return first[max(ordered, key=ordered.__getitem__)]
