"""Read and write adapters in peft's folders: adapter_config.json and adapter_model.safetensors."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bartizan._util.atomic import write_whole
from bartizan._util.regular_files import read_regular
from bartizan._util.text import quoted
from bartizan.errors import raise_if_exhausted
from bartizan.sources.adapters.adapters import Configured, LoRA, is_positive, parse_adapter
from bartizan.updates.files import create_update, open_update
from bartizan.updates.layout import on_gpu

CONFIG, TENSORS = "adapter_config.json", "adapter_model.safetensors"
MAX_CONFIG_BYTES = 2**20
ABSENT: tuple[Any, ...] = (None, False, "none", [], {})
# Options that change what an adapter does to the model in other ways than s B A of the factors' own shapes.
UNLIKE = (
    *("use_dora", "use_qalora", "use_bdlora", "kasa_config", "monteclora_config", "arrow_config"),
    *("bias", "lora_bias", "modules_to_save", "trainable_token_indices", "target_parameters"),
    *("alpha_pattern", "layer_replication"),
)
# A model's own names have that of the adapter in them, "lora_A.default.weight", and those in files do not.
OWN_NAME = re.compile(r"(\.lora_(?:embedding_)?[AB])\.(?!weight$)\w+(?=\.weight$|$)")


def open_adapter(folder: str | os.PathLike[str]) -> Configured:
    """The adapter in a peft folder: its factors, mapped, and what its configuration says of alpha and rank.

    A folder that is no sound one, or an adapter that is more than A and B of its modules, is a ValueError.
    """
    path = Path(folder)
    config = read_config(path)
    for name in UNLIKE:
        if config.get(name) not in ABSENT:
            raise ValueError(f"{path}: {name} is set to {quoted(config[name], 60)}; plain LoRA adapters are read.")
    if config.get("peft_type") != "LORA":
        raise ValueError(f"{path}: peft_type is {quoted(config.get('peft_type'), 60)}; wanted 'LORA'.")
    alpha: Any = config.get("lora_alpha")
    rank, rslora = config.get("r"), config.get("use_rslora", False)
    sound = is_positive(alpha) and isinstance(rank, int) and not isinstance(rank, bool) and isinstance(rslora, bool)
    if not sound:
        raise ValueError(
            f"{path}: wanted lora_alpha, a positive number, r, a whole one, and use_rslora, true or false; got "
            f"{quoted(alpha, 60)}, {quoted(rank, 60)} and {quoted(rslora, 60)}."
        )
    return Configured(open_update(path / TENSORS), float(alpha), None if config.get("rank_pattern") else rank, rslora)


def read_config(folder: Path) -> dict[str, Any]:
    """The JSON object of a folder's configuration; ValueError where there is none."""
    try:
        config = json.loads(read_regular(folder / CONFIG, MAX_CONFIG_BYTES))
    except OSError as unread:
        raise_if_exhausted(unread, f"{folder} can't be read")
        raise ValueError(f"{folder} is no peft folder: {CONFIG} can't be read: {unread.strerror}.") from None
    except (ValueError, RecursionError):  # UnicodeDecodeError among them
        raise ValueError(f"{folder} is no peft folder: {CONFIG} is no JSON.") from None
    if not isinstance(config, dict):
        raise ValueError(f"{folder} is no peft folder: {CONFIG} is no JSON object.")
    return config


def save_adapter(
    folder: str | os.PathLike[str],
    update: Mapping[str, Any],
    config: Mapping[str, Any] | str | os.PathLike[str],
    alpha: float | None = None,
) -> None:
    """Write an adapter as a folder that `PeftModel.from_pretrained` loads.

    Args:
        folder: Where to; made where it is missing.
        update: The factors, such as the `update` of an aggregation.
        config: The server's own adapter configuration, or a folder that has it; ranks are those of the factors.
        alpha: The result's `lora_alpha`; by default the one of `config`.
    """
    path = Path(folder)
    base = dict(config) if isinstance(config, Mapping) else read_config(Path(config))
    alpha = base.get("lora_alpha") if alpha is None else alpha
    if alpha is None:
        raise ValueError("The config has no lora_alpha: pass alpha=, the one that the adapters were aggregated with.")
    form = parse_adapter(update, LoRA(alpha=alpha, max_rank=2**31)).form
    usual = Counter(form.ranks).most_common(1)[0][0]
    others = {name: rank for (name, *_), rank in zip(form.shapes, form.ranks, strict=True) if rank != usual}
    pattern = {name.removeprefix("base_model.model."): rank for name, rank in others.items()}
    settings = {"peft_type": "LORA", "r": usual, "lora_alpha": alpha, "rank_pattern": pattern, "alpha_pattern": {}}
    path.mkdir(parents=True, exist_ok=True)
    arrays = {OWN_NAME.sub(r"\1", name): one.cpu() if on_gpu(one) else one for name, one in update.items()}
    with create_update(path / TENSORS, like=arrays) as out:
        for name, array in arrays.items():
            out[name][...] = array
    write_whole(path / CONFIG, json.dumps({**base, **settings}, indent=2) + "\n")
