"""Adapters in the laboratory: the server compares and averages their products."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from bartizan import Aggregator, Exact, Mean, MultiKrum  # noqa: E402
from bartizan.lab import run  # noqa: E402
from bartizan.lab.config.keys import ConfigError  # noqa: E402
from bartizan.lab.training.training_loop import Training  # noqa: E402
from bartizan.lora import TwoSided  # noqa: E402
from laboratory import SMALL  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

ADAPTED = SMALL.with_settings(["model.adapters=3", "rule.name=multi-krum", "rounds=3"])
LOCAL = ["clients.work=steps", "clients.local=2", "attack.name=none"]
EVERYONE = list(range(SMALL.clients.count))


def after_a_round(*settings):
    """A training of adapters after its first round, and what the clients send in the second."""
    training = Training(ADAPTED.with_settings(settings), "cpu")
    training.round(1)
    return training, list(training._client_updates(EVERYONE, 2).updates)


def factors(training, vector):
    named = training.clients.flat.named(vector.double())
    return named["fc.B"], named["fc.A"]


def product(training, vector):
    B, A = factors(training, vector)
    return B @ A


@pytest.mark.parametrize("sketch", [Exact(), TwoSided(256, 64)], ids=repr)
def test_a_client_that_turns_its_factors_changes_neither_weights_nor_model(sketch):
    training, sent = after_a_round(*LOCAL)
    start, Q = training.server.weights, torch.tensor([[1.0, 2, 0], [0, -0.5, 1], [3, 0, 1]])
    turned = (start - sent[4]).clone()
    B, A = (training.clients.flat.named(turned)[name] for name in ("fc.B", "fc.A"))
    B[...], A[...] = B @ Q, Q.inverse() @ A
    one, two = (
        training.aggregate(Aggregator(MultiKrum(3), sketch), [*sent[:4], row, *sent[5:]], seed=1)
        for row in (sent[4], start - turned)
    )
    assert one.weights[4] > 0
    torch.testing.assert_close(torch.tensor(two.weights), torch.tensor(one.weights))
    torch.testing.assert_close(two.update, one.update, rtol=1e-3, atol=1e-5)  # float32 factors were turned


def test_the_new_adapter_is_the_average_of_the_products_to_the_models_rank():
    training, sent = after_a_round(*LOCAL)
    start = training.server.weights.clone()
    training.server.step(training.aggregate(Aggregator(Mean()), sent, seed=1).update)
    U, s, V = torch.linalg.svd(sum(product(training, start - row) for row in sent) / len(sent))
    nearest = U[:, :3] * s[:3] @ V[:3]
    torch.testing.assert_close(product(training, training.server.weights), nearest, rtol=1e-3, atol=1e-5)
    before, after = (factors(training, vector)[1] for vector in (start, training.server.weights))
    torch.testing.assert_close(after @ after.T, before @ before.T, rtol=1e-4, atol=1e-5)
    assert (after - before).norm() < 0.1 * before.norm()


def test_adapters_are_factored_again_by_one_thread(monkeypatch):
    training, sent = after_a_round(*LOCAL)
    svd, threads = torch.linalg.svd, []

    def watched(*args, **settings):
        threads.append(torch.get_num_threads())
        return svd(*args, **settings)

    monkeypatch.setattr(torch.linalg, "svd", watched)
    torch.set_num_threads(2)
    training.aggregate(Aggregator(Mean()), sent, seed=1)
    assert threads == [1, 1]  # the products' and that of `aligned`
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize("rule", ["nnm >> geometric-median", "fltrust", "centered-clipping", "flame"])
@pytest.mark.parametrize("attack", ["sign-flip", "min-max", "fang-krum", "label-flip"])
def test_rules_and_attacks_work_on_adapters_and_no_honest_client_is_quarantined(rule, attack, tmp_path):
    given = ["rounds=2", f"rule.name={rule}", f"attack.name={attack}"]
    rounds = run(ADAPTED.with_settings(given), tmp_path).rounds
    for line in rounds:
        assert not line["quarantined"]
        assert line["step"] > 0
    if rule.startswith("nnm"):
        assert {line["sketch"] for line in rounds} == {"TwoSided(k=256, rows=256)"}
        assert len(rounds[-1]["exact_weights"]) == 10


@pytest.mark.parametrize(
    ("rank", "note"), [(10, ""), (11, "model.adapters = 11 is above the width of 1 of 1 linear layers")]
)
def test_a_rank_above_the_width_of_a_layer_is_told_in_the_first_round(rank, note):
    training = Training(ADAPTED.with_settings([f"model.adapters={rank}"]), "cpu")
    first, second = (training.round(t).get("note", "") for t in (1, 2))
    assert (first[: len(note)], bool(first), second) == (note, bool(note), "")
    assert factors(training, training.server.weights)[1].shape[0] == 10


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["rule.name=median"], r"rule\.name = 'median' judges single coordinates.*such as 'nnm >> geometric-median'"),
        (["rule.name=nnm >> trimmed-mean", "sketch.name=exact"], r"'nnm >> trimmed-mean' judges single coordinates"),
        (["rule.name=bulyan", "rule.trim=true"], r"rule\.trim = true judges single coordinates.*: leave it out\."),
        (["rule.name=flame", "rule.noise=0.1"], r"rule\.noise = 0\.1 adds noise.*: leave it out\."),
        (["sketch.name=gaussian"], r"sketch\.name = 'gaussian' projects vectors.*take 'exact' or 'rotated'"),
        (["attack.name=null-space"], r"attack\.name = 'null-space' aims at projected vectors"),
    ],
)
def test_what_adapters_do_not_admit_is_an_error_of_the_experiment(settings, message):
    with pytest.raises(ConfigError, match=message):
        ADAPTED.with_settings(settings)


def test_statistics_of_batch_norm_can_not_be_sent_with_adapters():
    with pytest.raises(ValueError, match=r"BatchNorm's statistics: take model\.norm = 'group'"):
        Training(ADAPTED.with_settings(["model.name=cnn", "model.norm=batch"]), "cpu")
