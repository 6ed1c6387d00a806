"""Text: windows of characters, natural clients, a causal transformer, and perplexity in runs and reports."""

from __future__ import annotations

import math

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from bartizan.lab import Experiment, models, run  # noqa: E402
from bartizan.lab.data import DataError, load  # noqa: E402
from bartizan.lab.data.addresses import CONTEXT, VOCABULARY, Texts, decoded, encoded  # noqa: E402
from bartizan.lab.data.device_text import TextOnDevice  # noqa: E402
from bartizan.lab.data.partition import counts, split  # noqa: E402
from bartizan.lab.models.trained_adapters import with_adapters  # noqa: E402
from bartizan.lab.training.evaluation import evaluate  # noqa: E402
from bartizan.lab.training.flat_model import FlatLayout  # noqa: E402
from bartizan.lab.training.gradients import Loop, Vmapped  # noqa: E402
from laboratory import facts, run_until  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

TEXT = Experiment.of(
    {
        "rounds": 3,
        "device": "cpu",
        "data": {"name": "sotu-mini"},
        "split": {"kind": "natural"},
        "model": {"name": "transformer"},
        "clients": {"count": 6, "batch": 2, "byzantine": 1},
        "attack": {"name": "alie"},
        "rule": {"name": "multi-krum"},
        "sketch": {"k": 1024},
        "evaluation": {"every": 3},
    }
)


@pytest.fixture(scope="module")
def sample():
    return load("sotu-mini")


def test_the_sample_has_a_president_for_every_class_and_reads_as_english(sample):
    assert sample.n_classes == 43
    assert sample.classes[0] == "George Washington"
    assert (np.bincount(sample.train.labels) == np.bincount(sample.train.labels)[0]).all()
    text = decoded(sample.train.tokens[:50].ravel())
    assert text.count(" the ") > 10
    assert sample.train.tokens.max() < VOCABULARY
    known = {row.tobytes() for row in sample.train.tokens}
    assert not any(row.tobytes() in known for row in sample.test.tokens)


def test_windows_follow_one_another_and_predict_every_character_but_the_first_once():
    texts = [encoded("We the people. " * 40), encoded("x" * CONTEXT), encoded("Fellow citizens! " * 9)]
    windows = Texts.cut(texts)
    assert windows.labels.tolist() == [0] * (599 // CONTEXT) + [2] * (152 // CONTEXT)
    predicted = np.concatenate([row[1:] for row in windows.tokens[windows.labels == 0]])
    np.testing.assert_array_equal(predicted, texts[0][1 : 1 + len(predicted)])


def test_a_folder_of_addresses_is_read_by_president(tmp_path):
    for name, text in {
        "1790_george_washington_n": "Fellow-Citizens of the Senate\n\n and House. " * 40,
        "1791_george_washington_n": "I meet you upon the present occasion. " * 40,
        "1797_john_adams_f": "Gentlemen \u201cof\u201d the Senate \u2014 caf\u00e9. " * 40,
    }.items():
        (tmp_path / f"{name}.txt").write_text(text, encoding="utf-8")
    data = load("sotu", tmp_path)
    assert data.classes == ("George Washington", "John Adams")
    assert decoded(data.train.tokens[data.train.labels == 1][0]).startswith('Gentlemen "of" the Senate - caf?. ')
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(DataError, match="wanted names such as 1790_george"):
        load("sotu", tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="is missing"):
        load("sotu", tmp_path / "empty")


def test_a_natural_split_gives_whole_presidents_to_clients(sample):
    parts = split("natural", sample.train.labels, 20, np.random.default_rng(0), least=2)
    held = counts(parts, sample.train.labels, 43)
    assert ((held > 0).sum(axis=0) == 1).all()
    assert set((held > 0).sum(axis=1)) == {2, 3}
    with pytest.raises(ValueError, match="43 classes has that many clients at most, got 44"):
        split("natural", sample.train.labels, 44, np.random.default_rng(0))


def test_the_transformer_sees_no_later_character():
    model = models.build("transformer", VOCABULARY, (CONTEXT,), seed=1)
    tokens = torch.randint(VOCABULARY, (1, CONTEXT), generator=torch.Generator().manual_seed(0))
    other = tokens.clone()
    other[0, 40:] = (other[0, 40:] + 7) % VOCABULARY
    one, two = model(tokens), model(other)
    torch.testing.assert_close(one[..., :40], two[..., :40])
    assert not torch.allclose(one[..., 40:], two[..., 40:])


@pytest.mark.parametrize(("shared", "adapters"), [(True, False), (False, False), (False, True)])
def test_gradients_of_many_clients_are_the_loops(shared, adapters, sample):
    model = models.build("transformer", VOCABULARY, (CONTEXT,))
    model = (with_adapters(model, 2) if adapters else model).double()
    flat = FlatLayout.of(model)
    text, weights = TextOnDevice(sample.test), flat.read(model)
    given = weights if shared else weights + 0.01 * torch.rand(3, flat.size, dtype=torch.float64)
    where = torch.arange(6).reshape(3, 2)
    wanted, got = (kind(model)(given, text.batch(where), text.labels[where]) for kind in (Loop, Vmapped))
    torch.testing.assert_close(got.rows, wanted.rows, rtol=1e-8, atol=1e-12)
    torch.testing.assert_close(got.losses, wanted.losses)


def test_evaluation_is_the_mean_over_all_characters(sample):
    model = models.build("transformer", VOCABULARY, (CONTEXT,))
    text = TextOnDevice(Texts(sample.test.pixels[:30], sample.test.labels[:30]))
    accuracy, loss = evaluate(model, FlatLayout.of(model).read(model), text, batch=7)
    scores = model(text.batch(torch.arange(30)))
    assert loss == pytest.approx(torch.nn.functional.cross_entropy(scores.double(), text.labels).item(), rel=1e-5)
    assert accuracy == pytest.approx((scores.argmax(1) == text.labels).double().mean().item())


def test_a_run_on_text_records_perplexity_and_resumes_to_the_bit(tmp_path):
    whole = run(TEXT, tmp_path / "whole")
    assert whole.run["metric"] == "perplexity"
    line = whole.rounds[-1]
    assert "accuracy" not in line
    assert line["perplexity"] == pytest.approx(math.exp(line["test_loss"]))
    assert whole.end["best"] == whole.end["last"] == line["perplexity"]
    assert not whole.end["converged"]  # after three rounds
    run_until(2, TEXT, tmp_path / "parts")
    run(TEXT, tmp_path / "parts", resume=True)
    assert facts(tmp_path / "parts") == facts(tmp_path / "whole")


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("model.name=cnn", "model 'cnn' is for images: text needs model.name = 'transformer'"),
        ("data.name=fashion-mnist-mini", "transformer predicts text and was given images"),
        ("attack.name=backdoor", "'backdoor' changes images, and sotu-mini is text"),
    ],
)
def test_what_does_not_fit_text_is_refused(setting, message, tmp_path):
    more = ["split.kind=iid"] if setting.startswith("data") else []
    with pytest.raises(ValueError, match=message):
        run(TEXT.with_settings([setting, *more]), tmp_path)


@pytest.mark.parametrize("name", ["transformer", "cnn"])
def test_adapters_add_a_product_to_every_linear_layer_and_nothing_else_is_trained(name):
    shape = (CONTEXT,) if name == "transformer" else (1, 12, 12)
    plain, model = (models.build(name, VOCABULARY, shape, seed=3) for _ in range(2))
    linear = {path: one for path, one in plain.named_modules() if isinstance(one, torch.nn.Linear)}
    given = torch.randint(VOCABULARY, (2, CONTEXT)) if name == "transformer" else torch.randn(2, 1, 12, 12)
    before = {path: tensor.clone() for path, tensor in model.state_dict().items()}
    with_adapters(model, 3, seed=1)
    assert {path.rpartition(".")[0] for path, _ in model.named_parameters()} == set(linear)
    assert FlatLayout.of(model).size == sum(3 * (one.in_features + one.out_features) for one in linear.values())
    torch.testing.assert_close(model(given), plain(given))
    with torch.no_grad():
        for path, one in linear.items():
            adapted = model.get_submodule(path)
            adapted.B.normal_()
            one.weight += adapted.B @ adapted.A
    torch.testing.assert_close(model(given), plain(given), rtol=1e-3, atol=1e-4)
    after = model.state_dict()
    assert all(torch.equal(tensor, after[path]) for path, tensor in before.items())


def test_a_run_of_adapters_begins_from_the_checkpoint_of_another_and_sends_little(tmp_path):
    first = run(TEXT, tmp_path / "first")
    given = [f"model.weights={tmp_path / 'first' / 'checkpoint.pt'}", "model.adapters=2", "server.step_size=1e-9"]
    second = run(TEXT.with_settings(given), tmp_path / "second")
    assert second.run["dim"] < first.run["dim"] / 10
    assert second.rounds[-1]["perplexity"] == pytest.approx(first.rounds[-1]["perplexity"], rel=1e-4)
    with pytest.raises(ValueError, match="it lacks"):
        run(TEXT.with_settings([f"model.weights={tmp_path / 'second' / 'checkpoint.pt'}"]), tmp_path / "third")


@pytest.mark.slow
def test_robust_rules_learn_the_text_that_an_attacked_mean_does_not(tmp_path):
    """120 rounds reach 11.9 without attack; guessing by frequency is above 20. Robust rules stay within 5%."""
    base = TEXT.changed(
        {
            "rounds": 120,
            "clients": {"count": 20, "batch": 8, "byzantine": 0.2},
            "server.optimiser": "prodigy",
            "sketch": {"name": "rotated", "k": 4096},
            "evaluation.every": 20,
        }
    )
    ends = {}
    for rule, attack in (
        ("mean", "none"),
        ("mean", "sign-flip"),
        ("nnm >> geometric-median", "sign-flip"),
        ("flame", "sign-flip"),
    ):
        chosen = base.changed({"rule": {"name": rule}, "attack": {"name": attack}})
        ends[rule, attack] = run(chosen, tmp_path / f"{rule[:3]}-{attack}").end
    clean = ends["mean", "none"]["last"]
    assert clean < 13
    attacked = ends["mean", "sign-flip"]
    assert attacked["status"] == "diverged" or attacked["last"] > 2 * clean
    for rule in ("nnm >> geometric-median", "flame"):
        assert ends[rule, "sign-flip"]["last"] < 1.05 * clean
