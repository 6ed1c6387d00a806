"""No client's adapter ends a round: it is quarantined with a reason, and the others proceed."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

import bartizan as bz
from bartizan import lora
from bartizan.lora import LoRA, TwoSided, open_adapter, save_adapter
from bartizan.sources.adapters.adapters import Configured
from bartizan.sources.adapters.peft_folders import CONFIG, TENSORS
from bartizan.sources.adapters.two_sided import RandomSigns
from hostile_objects import ClaimingPath, Unclassed
from made_adapters import adapter, dense, rotated

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
    "an embedding": ({name.replace("lora_", "lora_embedding_"): array for name, array in GOOD.items()}, "got nothing"),
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


def test_a_minority_of_the_weight_decides_neither_rank_nor_dtype_nor_alpha():
    """Two of nine agree on rank 1, float16 and a small alpha, where no two of the others have the same ranks."""
    modules = ("h.0.q_proj", "h.0.v_proj")
    sent = []
    for m in range(9):
        update = adapter(np.random.default_rng(m), 1 if m < 2 else 4)
        own = {module: 2 + (m + j) % 7 for j, module in enumerate(modules)} if m >= 2 else {}
        for module, rank in own.items():
            shape = {"h.0.q_proj": (40, 30), "h.0.v_proj": (17, 30)}[module]
            update |= adapter(np.random.default_rng(m), rank, modules={module: shape})
        kind = np.float16 if m < 2 else np.float32
        alpha = 0.01 if m < 2 else 4.0
        sent.append(Configured({name: array.astype(kind) for name, array in update.items()}, alpha, None, False))
    out = lora.aggregate(sent, bz.Mean())
    assert not out.quarantined
    assert out.alpha == 4
    assert {array.dtype for array in out.update.values()} == {np.dtype(np.float32)}
    assert min(len(array) for name, array in out.update.items() if "_A" in name) > 1
    X = np.array([dense(one.arrays, one.alpha) for one in sent])
    whole = lora.aggregate(sent, bz.Mean(), LoRA(rank=30))  # which keeps every product
    np.testing.assert_allclose(dense(whole.update, whole.alpha), X.mean(axis=0), atol=1e-5 * np.abs(X).max())


@pytest.mark.parametrize("library", [np.asarray, torch.from_numpy], ids=["NumPy", "torch"])
@pytest.mark.parametrize(("common", "wide", "size"), [("float16", "float32", 1e6), ("float32", "float64", 1e60)])
def test_a_client_of_a_wider_dtype_makes_no_number_of_the_result_overflow(common, wide, size, library):
    """With Mean, which takes every client as it is."""
    sent = [adapter(np.random.default_rng(m), 4, common) for m in range(8)]
    sent.append({name: array.astype(wide) * size for name, array in adapter(np.random.default_rng(8), 4).items()})
    sent = [{name: library(array) for name, array in update.items()} for update in sent]
    out = lora.aggregate(sent, bz.Mean(), LoRA(alpha=4), seed=1)
    for array in map(np.asarray, out.update.values()):
        assert array.dtype == common
        assert np.isfinite(array).all()


def test_a_clients_own_alpha_is_bounded_on_both_sides():
    honest = [Configured(adapter(rng, 2), 4.0, None, False) for _ in range(4)]
    for alpha in (5e-324, 1e-9, 2.0**-12, 129.0, 1e308):
        out = lora.aggregate([Configured(GOOD, alpha, None, False), *honest], bz.Mean())
        assert list(out.quarantined) == [0]
        assert ("is the least" if alpha < 1 else "64 is the most") in out.quarantined[0]


def hidden_by(sketch, seed, shape):
    """An adapter of rank 1 whose product this seed maps to zero: B in half of the groups of rows, A in the others."""
    maps, factors = RandomSigns(sketch.rows, seed, [("m", *shape)]), {}
    for side, width, half in (("A", shape[1], slice(None, sketch.rows // 2)), ("B", shape[0], slice(128, None))):
        signs = maps.columns(np.array([0]), side, 0, np.empty((1, 1, width)))[0]
        null = np.linalg.svd(signs[:, half].T)[2][-1]
        factors[f"m.lora_{side}.weight"] = null[None] if side == "A" else null[:, None]
    return factors


@pytest.mark.parametrize("with_reference", [False, True])
def test_a_client_that_the_projection_hides_is_quarantined(with_reference):
    """It knows the seed, which is passed here; without the check it has the weight of an honest client."""
    shape, sketch = (200, 180), TwoSided()
    start, *honest = (adapter(np.random.default_rng(m), 1, np.float64, {"m": shape}) for m in range(7))
    hidden = hidden_by(sketch, 3, shape)
    if with_reference:  # of rank 2, so that the difference from the reference is hidden
        hidden = {name: np.concatenate([start[name], 99 * hidden[name]], axis=int("_B" in name)) for name in start}
        hidden["m.lora_A.weight"] = 2 * hidden["m.lora_A.weight"]  # its alpha / r is half of the others'
    else:
        hidden = {name: 99 * array for name, array in hidden.items()}
    out = lora.aggregate(
        [hidden, *honest],
        bz.GeometricMedian(),
        LoRA(alpha=1),
        sketch=sketch,
        seed=3,
        reference=start if with_reference else None,
    )
    assert list(out.quarantined) == [0]
    assert "hides from the projection" in out.quarantined[0]


def test_clients_that_send_the_reference_back_are_not_accused():
    """Rounding is all that is left of their differences, and of it a sketch shows anything."""
    rng = np.random.default_rng(5)
    start = adapter(rng, 4)
    sent = [adapter(rng, 4, around=start, spread=0.1) for _ in range(4)]
    sent += [start, dict(start), rotated(start, rng)]
    for seed in range(5):
        settings = {"sketch": TwoSided(), "reference": start, "seed": seed}
        assert not lora.aggregate(sent, bz.GeometricMedian(), LoRA(alpha=4), **settings).quarantined


def test_rules_sketches_and_settings_that_adapters_do_not_admit_are_refused():
    for rule in (bz.Median(), bz.NNM(1) >> bz.TrimmedMean(1), bz.Bulyan(1, trim=True)):
        with pytest.raises(ValueError, match="single coordinates"):
            lora.aggregate([GOOD] * 7, rule, LoRA(alpha=1))
    with pytest.raises(ValueError, match="TwoSided"):
        lora.aggregate([GOOD] * 5, bz.Mean(), LoRA(alpha=1), sketch=bz.Rotated())
    with pytest.raises(ValueError, match=r"bartizan\.lora\.aggregate"):
        bz.aggregate(np.ones((5, 9)), bz.Krum(1), sketch=TwoSided())
    with pytest.raises(bz.TooFewClientsError, match="does not say its alpha"):
        lora.aggregate([GOOD] * 5, bz.Mean())
    for wrong in ({"alpha": -1}, {"alpha": float("nan")}, {"rank": 0}, {"max_rank": True}):
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


def test_what_a_clients_own_class_raises_is_its_own_fault(tmp_path, monkeypatch):
    posing = ClaimingPath(tmp_path)
    monkeypatch.setattr(ClaimingPath, "claims", True)
    out = lora.aggregate([GOOD, GOOD, GOOD, Unclassed(), GOOD, posing], bz.Mean(), LoRA(alpha=4))
    assert list(out.quarantined) == [3, 5]


@dataclass(frozen=True)
class Rewriting(bz.GeometricMedian):
    """A rule during which a client writes to its file in place."""

    path: Path | None = None

    def weigh(self, geometry):
        with open(self.path, "r+b") as file:
            file.seek(-400, os.SEEK_END)
            file.write(np.full(100, 1e9, np.float32).tobytes())
        return super().weigh(geometry)


@pytest.mark.parametrize("sketch", [bz.Exact(), TwoSided()], ids=repr)
def test_folders_are_read_once(sketch, tmp_path):
    """Each is measured and averaged in several readings: none of them sees what is written meanwhile."""
    sent = [folder_of(tmp_path / f"{m}", adapter(np.random.default_rng(m), 2)) for m in range(5)]
    plain = lora.aggregate(sent, bz.GeometricMedian(), LoRA(), sketch=sketch, seed=1)
    rule = Rewriting(path=sent[2] / TENSORS)
    before = (sent[2] / TENSORS).read_bytes()
    out = lora.aggregate(sent, rule, LoRA(), sketch=sketch, seed=1)
    assert (sent[2] / TENSORS).read_bytes() != before
    for name, array in plain.update.items():
        np.testing.assert_array_equal(out.update[name], array)
