"""Federated fine-tuning of a small transformer with peft: ten clients, each with its own part of a text."""

from __future__ import annotations

import json
import os
from functools import cache
from pathlib import Path

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
from transformers import GPT2Config, GPT2LMHeadModel

import bartizan as bz
from bartizan.flower import RobustStrategy
from bartizan.lora import LoRA, save_adapter

ROOT = Path(__file__).parents[3]
OUT = Path(os.environ.get("FINE_TUNING_OUT", "."))
CLIENTS, HOSTILE, ROUNDS, LENGTH, VOCABULARY = 10, 2, 4, 48, 128
LORA = LoraConfig(r=8, lora_alpha=16, target_modules=["c_attn", "c_fc"], fan_in_fan_out=True)
torch.set_num_threads(1)


def text(*, backwards: bool = False) -> torch.Tensor:
    """The licence of this project as lines of LENGTH + 1 characters; the clients have it backwards."""
    codes = [min(byte, VOCABULARY - 1) for byte in (ROOT / "LICENSE").read_bytes()][:: -1 if backwards else 1]
    return torch.tensor(codes[: len(codes) // (LENGTH + 1) * (LENGTH + 1)]).view(-1, LENGTH + 1)


def small_model() -> GPT2LMHeadModel:
    sizes = {"vocab_size": VOCABULARY, "n_positions": LENGTH, "n_embd": 64, "n_layer": 2, "n_head": 4}
    config = GPT2Config(**sizes, bos_token_id=0, eos_token_id=0, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    torch.manual_seed(0)
    return GPT2LMHeadModel(config)


def loss_of(model: torch.nn.Module, lines: torch.Tensor) -> torch.Tensor:
    logits = model(input_ids=lines[:, :-1]).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), lines[:, 1:].flatten())


def train(model: torch.nn.Module, lines: torch.Tensor, steps: int, rate: float, seed: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=rate)
    for _ in range(steps):
        optimizer.zero_grad()
        loss_of(model, lines[torch.randint(len(lines), (16,), generator=rng)]).backward()
        optimizer.step()


def pretrained() -> Path:
    """The weights of the base model, which has read the licence forwards."""
    path = OUT / "base.pt"
    if not path.exists():
        model = small_model()
        train(model, text(), 150, 3e-3, 0)
        torch.save(model.state_dict(), path)
    return path


@cache
def model_with_adapter() -> PeftModel:
    base = small_model()
    base.load_state_dict(torch.load(OUT / "base.pt"))
    return get_peft_model(base, LORA)


def parts() -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Lines to evaluate with, and each client's own."""
    lines = text(backwards=True)
    return lines[::8], [lines[torch.arange(len(lines)) % 8 != 0][n::CLIENTS] for n in range(CLIENTS)]


client = ClientApp()


@client.train()
def fine_tune(message: Message, context: Context) -> Message:
    number, config = int(context.node_config["partition-id"]), message.content["config"]
    model, sent = model_with_adapter(), message.content["arrays"].to_torch_state_dict()
    set_peft_model_state_dict(model, sent)
    train(model, parts()[1][number], 15, 1e-2, 100 * int(config["server-round"]) + number)
    update = get_peft_model_state_dict(model)
    if config["hostile"] and number < HOSTILE:  # the opposite of what was learned, and larger
        for name in (name for name in update if "lora_B" in name):
            update[name] = sent[name] - 15 * (update[name] - sent[name])
    content = {"arrays": ArrayRecord(update), "metrics": MetricRecord({"num-examples": 1})}
    return Message(RecordDict(content), reply_to=message)


server = ServerApp()


@server.main()
def main(grid: Grid, context: Context) -> None:
    pretrained()
    model = model_with_adapter()
    start = {name: array.clone() for name, array in get_peft_model_state_dict(model).items()}
    held_out = parts()[0]
    losses = {}

    def evaluate(state: dict[str, torch.Tensor]) -> float:
        set_peft_model_state_dict(model, state)
        with torch.no_grad():
            return float(loss_of(model, held_out))

    losses["start"] = evaluate(start)
    nodes = {"fraction_evaluate": 0.0, "min_train_nodes": CLIENTS, "min_available_nodes": CLIENTS}
    adapters = LoRA(alpha=LORA.lora_alpha)
    for name, hostile, strategy in (
        ("honest", False, RobustStrategy(bz.Mean(), adapters=adapters, **nodes)),
        ("robust", True, RobustStrategy(bz.NNM(HOSTILE) >> bz.GeometricMedian(), adapters=adapters, **nodes)),
        ("FedAvg", True, FedAvg(**nodes)),
    ):
        config = ConfigRecord({"hostile": hostile})
        result = strategy.start(grid, ArrayRecord(start), num_rounds=ROUNDS, timeout=120, train_config=config)
        final = result.arrays.to_torch_state_dict()
        losses[name] = evaluate(final)
        if name == "robust":
            LORA.save_pretrained(OUT / "server")
            save_adapter(OUT / "adapter", final, OUT / "server")
            weights = [list(one["bartizan-weights"]) for one in result.train_metrics_clientapp.values()]
    base = small_model()
    base.load_state_dict(torch.load(OUT / "base.pt"))
    with torch.no_grad():
        losses["loaded"] = float(loss_of(PeftModel.from_pretrained(base, OUT / "adapter"), held_out))
    (OUT / "told.json").write_text(json.dumps({"losses": losses, "weights": weights}))
