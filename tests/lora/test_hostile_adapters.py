"""No client's adapter ends a round: it is quarantined with a reason, and the others proceed."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

import bartizan as bz
from bartizan import lora
from bartizan.lora import LoRA, TwoSided, open_adapter, save_adapter
from bartizan.lora.peft_folders import CONFIG, TENSORS
from made_adapters import adapter, dense

rng = np.random.default_rng(0)
GOOD = adapter(rng, 2)
A, B = "h.0.q_proj.lora_A.weight", "h.0.q_proj.lora_B.weight"
NAN = np.where(np.arange(60).reshape(2, 30) == 7, np.nan, 1).astype(np.float32)
# Two components of 1e6 that cancel to 1 part in 1e7: float32 factors, and a product whose digits are gone.
CANCELLING = {
    name: np.concatenate([1e6 * array, 1e6 * array], axis=0 if "_A" in name else 1)
    * (np.ones((1, 1)) if "_A" in name else np.repeat([1, -1 + 1e-7], 2))
    for name, array in GOOD.items()
}
HOSTILE = {
    "NaN": ({**GOOD, A: NAN}, "holds NaN or Inf"),
    "Inf": ({**GOOD, A: np.full((2, 30), np.inf, np.float32)}, "holds NaN or Inf"),
    "overflow": ({**GOOD, A: np.full((2, 30), 1e30, np.float32)}, "squares overflow"),
    "cancelling factors": (CANCELLING, "cancel each other"),
    "no partner": ({name: array for name, array in GOOD.items() if name != A}, "no partner"),
    "unequal ranks": ({**GOOD, A: np.ones((3, 30), np.float32)}, "no product"),
    "rank 0": ({**GOOD, A: np.ones((0, 30)), B: np.ones((40, 0))}, "no product"),
    "an absurd rank": ({**GOOD, A: np.ones((999, 30)), B: np.ones((40, 999))}, "max_rank is 256"),
    "another width": ({**GOOD, A: np.ones((2, 31))}, "got a product of shape (40, 31)"),
    "a module less": ({A: GOOD[A], B: GOOD[B]}, "got nothing"),
    "a module more": ({**GOOD, "x.lora_A.weight": GOOD[A], "x.lora_B.weight": GOOD[B]}, "not part of"),
    "a head": ({**GOOD, "classifier.weight": np.ones((2, 2))}, "no factor of an adapter"),
    "a vector": ({**GOOD, A: np.ones(30)}, "must be a matrix"),
    "integers": ({**GOOD, A: np.ones((2, 30), int)}, "floating-point"),
    "A twice": ({**GOOD, A.replace("lora_A", "lora_A.default"): GOOD[A]}, "second A"),
    "a list": ([GOOD[A]], "no factor of an adapter"),
    "an array": (np.ones(9), "no factor of an adapter"),
    "nothing": ({}, "empty"),
    "a text": ("adapter", "not a NumPy array"),
    "None": (None, "not a NumPy array"),
}


@pytest.mark.parametrize("sketch", [bz.Exact(), TwoSided(k=256, rows=64)], ids=["exact", "sketched"])
@pytest.mark.parametrize("name", HOSTILE)
def test_an_adapter_that_cannot_be_used_is_quarantined(name, sketch):
    update, reason = HOSTILE[name]
    honest = [adapter(rng, 2 + m % 2) for m in range(4)]
    X = np.array([dense(one, 4) for one in honest])
    reference = None if isinstance(sketch, bz.Exact) else GOOD
    settings = {"sketch": sketch, "reference": reference}
    out = lora.aggregate([update, *honest], bz.GeometricMedian(), LoRA(alpha=4, rank=30), **settings)
    assert list(out.quarantined) == [0]
    assert reason in out.quarantined[0]
    assert out.weights[0] == 0
    np.testing.assert_allclose(dense(out.update, 4), out.weights[1:] @ X, atol=1e-5 * np.abs(X).max())
    with pytest.raises(bz.BadClientError, match="client 4"):  # names and shapes of the others are known by then
        lora.aggregate([*honest, update], bz.Mean(), LoRA(alpha=4), strict=True, **settings)


def test_huge_clients_spoil_no_digits_of_others():
    """1e15 beside 1: honest distances decide as without it, exact and sketched."""
    honest = [adapter(np.random.default_rng(m), 2, around=GOOD, spread=0.1 + 0.1 * m) for m in range(6)]
    huge = {name: array * np.float32(1e8) for name, array in GOOD.items()}
    for sketch in (bz.Exact(), TwoSided()):
        with_it = lora.aggregate([*honest, huge], bz.MultiKrum(1, n_selected=3), LoRA(alpha=2), sketch=sketch, seed=5)
        without = lora.aggregate(honest, bz.MultiKrum(1, n_selected=3), LoRA(alpha=2), sketch=sketch, seed=5)
        assert np.flatnonzero(with_it.weights).tolist() == np.flatnonzero(without.weights).tolist()


def test_rules_sketches_and_settings_that_adapters_do_not_admit_are_refused():
    for rule in (bz.Median(), bz.NNM(1) >> bz.TrimmedMean(1), bz.Bulyan(1, trim=True)):
        with pytest.raises(ValueError, match="single coordinates"):
            lora.aggregate([GOOD] * 7, rule, LoRA(alpha=1))
    with pytest.raises(ValueError, match="TwoSided"):
        lora.aggregate([GOOD] * 5, bz.Mean(), LoRA(alpha=1), sketch=bz.Rotated())
    with pytest.raises(TypeError, match=r"bartizan\.lora\.aggregate"):
        bz.aggregate(np.ones((5, 9)), bz.Krum(1), sketch=TwoSided())
    with pytest.raises(bz.TooFewClientsError, match="does not say its alpha"):
        lora.aggregate([GOOD] * 5, bz.Mean())
    for wrong in ({"alpha": -1}, {"alpha": float("nan")}, {"rank": 0}, {"max_rank": True}, {"combine": "x"}):
        with pytest.raises(ValueError, match="LoRA"):
            LoRA(**wrong)
    for wrong in ({"k": 100}, {"k": 64, "rows": 128}, {"k": 4096, "rows": 32}):
        with pytest.raises(ValueError, match="TwoSided needs"):
            TwoSided(**wrong)


def folder_of(path, update=GOOD, **config):
    path.mkdir()
    save_file(update, path / TENSORS)
    (path / CONFIG).write_text(json.dumps({"peft_type": "LORA", "r": 2, "lora_alpha": 4, **config}))
    return path


def test_folders_are_read_with_their_own_alpha_and_written_back(tmp_path):
    sent = [folder_of(tmp_path / f"{m}", adapter(rng, 2), lora_alpha=2 + 2 * (m % 2)) for m in range(4)]
    wide = folder_of(tmp_path / "wide", adapter(rng, 3), r=3, lora_alpha=6)
    X = np.array([dense(open_adapter(one).arrays, open_adapter(one).alpha) for one in [*sent, wide]])
    out = lora.aggregate([*sent, wide], bz.Mean(), LoRA(rank=12), reference=sent[0])
    assert not out.quarantined
    save_adapter(tmp_path / "next", out.update, sent[0])
    again = open_adapter(tmp_path / "next")
    assert (again.alpha, again.rank) == (2, 12)
    assert list(again.arrays) == list(GOOD)
    np.testing.assert_allclose(dense(again.arrays, 2), X.mean(axis=0), atol=1e-5 * np.abs(X).max())
    # A model's own names hold that of the adapter, ranks may differ between modules.
    mixed = {name.replace(".weight", ".default.weight"): array for name, array in GOOD.items()}
    mixed |= {
        "base_model.model.x.lora_A.default.weight": np.ones((5, 3)),
        "base_model.model.x.lora_B.default.weight": np.ones((4, 5)),
    }
    save_adapter(tmp_path / "mixed", mixed, {"target_modules": ["x"]}, alpha=3)
    config = json.loads((tmp_path / "mixed" / CONFIG).read_text())
    assert (config["r"], config["rank_pattern"], config["lora_alpha"]) == (2, {"x": 5}, 3)
    assert A in open_adapter(tmp_path / "mixed").arrays


HOSTILE_FOLDERS = {
    "no config": lambda path: (path / CONFIG).unlink(),
    "no tensors": lambda path: (path / TENSORS).unlink(),
    "a pipe for a config": lambda path: ((path / CONFIG).unlink(), os.mkfifo(path / CONFIG)),
    "no JSON": lambda path: (path / CONFIG).write_text("{"),
    "no text": lambda path: (path / CONFIG).write_bytes(b"\xff\xfe\x00"),
    "deep JSON": lambda path: (path / CONFIG).write_text("[" * 10**5),
    "a list": lambda path: (path / CONFIG).write_text("[]"),
    "two megabytes": lambda path: (path / CONFIG).write_text(" " * 2**21),
    "cut tensors": lambda path: (path / TENSORS).write_bytes((path / TENSORS).read_bytes()[:-1]),
    "long integers": lambda path: (path / CONFIG).write_text('{"lora_alpha": ' + "9" * 5000 + "}"),
}
HOSTILE_CONFIGS = {
    "another alpha": ({"lora_alpha": 5}, "the server's is 4"),
    "no alpha": ({"lora_alpha": None}, "wanted lora_alpha"),
    "a text": ({"lora_alpha": "4"}, "wanted lora_alpha"),
    "NaN": ({"lora_alpha": float("nan")}, "wanted lora_alpha"),
    "Inf": ({"lora_alpha": float("inf")}, "wanted lora_alpha"),
    "a huge alpha": ({"lora_alpha": 10**400}, "wanted lora_alpha"),
    "true": ({"lora_alpha": True}, "wanted lora_alpha"),
    "another rank": ({"r": 3}, "its configuration says 3"),
    "a rank of text": ({"r": "2"}, "wanted lora_alpha"),
    "another kind": ({"peft_type": "LOHA"}, "wanted 'LORA'"),
    "no kind": ({"peft_type": [1]}, "wanted 'LORA'"),
    "rslora": ({"use_rslora": True}, "use_rslora is True"),
    "DoRA": ({"use_dora": True}, "use_dora"),
    "bias": ({"bias": "all"}, "bias"),
    "alphas of its own": ({"alpha_pattern": {"q": 9}}, "alpha_pattern"),
    "heads": ({"modules_to_save": ["classifier"]}, "modules_to_save"),
}


@pytest.mark.parametrize("name", [*HOSTILE_FOLDERS, *HOSTILE_CONFIGS])
def test_a_folder_that_cannot_be_used_is_quarantined(name, tmp_path):
    sent = [folder_of(tmp_path / f"{m}", adapter(rng, 2)) for m in range(3)]
    config, reason = HOSTILE_CONFIGS.get(name, ({}, ""))
    bad = folder_of(tmp_path / "bad", **config)
    HOSTILE_FOLDERS.get(name, lambda path: None)(bad)
    out = lora.aggregate([*sent, bad], bz.Mean(), LoRA(alpha=4))
    assert list(out.quarantined) == [3]
    assert reason in out.quarantined[3]


def test_a_clients_own_alpha_is_bounded(tmp_path):
    sent = [folder_of(tmp_path / f"{m}", adapter(rng, 2)) for m in range(3)]
    sent.append(folder_of(tmp_path / "loud", lora_alpha=1e6))
    out = lora.aggregate(sent, bz.Mean())
    assert list(out.quarantined) == [3]
    assert "64 is the most" in out.quarantined[3]


@dataclass(frozen=True)
class Rewriting(bz.GeometricMedian):
    """A rule during which a client writes to its file in place."""

    path: Path | None = None

    def weigh(self, geometry):
        with open(self.path, "r+b") as file:
            file.seek(-400, os.SEEK_END)
            file.write(np.full(100, 1e9, np.float32).tobytes())
        return super().weigh(geometry)


@pytest.mark.parametrize("combine", ["products", "factors"])
@pytest.mark.parametrize("sketch", [bz.Exact(), TwoSided()], ids=repr)
def test_folders_are_read_once(sketch, combine, tmp_path):
    """Each is measured and averaged in several readings: none of them sees what is written meanwhile."""
    sent = [folder_of(tmp_path / f"{m}", adapter(np.random.default_rng(m), 2)) for m in range(5)]
    settings = LoRA(combine=combine)
    plain = lora.aggregate(sent, bz.GeometricMedian(), settings, sketch=sketch, seed=1)
    rule = Rewriting(path=sent[2] / TENSORS)
    before = (sent[2] / TENSORS).read_bytes()
    out = lora.aggregate(sent, rule, settings, sketch=sketch, seed=1)
    assert (sent[2] / TENSORS).read_bytes() != before
    for name, array in plain.update.items():
        np.testing.assert_array_equal(out.update[name], array)
