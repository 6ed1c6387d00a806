"""Sentences and data of a report, tested without a browser."""

from __future__ import annotations

import json
import math
import sys

import pytest

from bartizan import records as results
from bartizan.lab.report.content import content, data, page
from bartizan.lab.report.load import load
from bartizan.lab.report.write import write
from report_runs import write_brief, write_run


def sentences(folder):
    return " ".join(content(load(folder)).findings)


def card(folder, label):
    return {one["label"]: (one["value"], one["note"]) for one in data(content(load(folder)))["cards"]}[label]


def test_runs_without_an_accuracy_are_not_in_the_headline(tmp_path):
    for rule in ("krum", "cge"):
        write_brief(tmp_path / rule, rule, accuracy=None, ends=False)
    assert content(load(tmp_path)).findings == ["None of 2 runs was evaluated yet."]
    write_brief(tmp_path / "mca", "mca", accuracy=0.783)
    said = sentences(tmp_path)
    assert said.startswith("So far, with unfinished runs: Under lie: mca 78.3%. One seed.")
    assert "krum" not in said


def test_without_attackers_the_headline_has_the_best_end(tmp_path):
    write_brief(tmp_path / "a", "krum", "none", accuracy=0.1, converged=False)
    assert sentences(tmp_path) == "Best without attackers: krum not converged. One seed."
    write_brief(tmp_path / "b", "mean", "none", accuracy=0.8)
    assert sentences(tmp_path) == "Best without attackers: mean 80%. One seed."


def write_means(folder, clean=0.82, **attacked):
    """The mean without attack, and under attacks by name; None is a run that did not converge."""
    write_brief(folder / "mean-none", "mean", "none", accuracy=clean)
    for attack, end in attacked.items():
        write_brief(folder / f"mean-{attack}", "mean", attack, accuracy=end or 0.1, converged=end is not None)


def test_a_rule_holds_that_keeps_nine_tenths_and_breaks_below_half(tmp_path):
    write_means(tmp_path, clean=0.8, foe=None, lie=0.39, ipm=0.5)
    for attack, end in (("foe", 0.73), ("lie", 0.725), ("ipm", 0.8)):
        write_brief(tmp_path / attack, "mca", attack, accuracy=end)
    write_brief(tmp_path / "k", "krum", "lie", accuracy=0.71)
    lead, advice, about = content(load(tmp_path)).findings
    assert lead == (
        "Worst of 3 attacks: mean 10%, mca 72.5%, the mean without attack 80%. Held: mca. "
        "Lost: krum 9 points under lie (only under lie). Broke: mean under foe and lie. One seed."
    )
    assert advice == "Take mca here: of the rules that held it has the best worst case; lie costs it most, 7.5 points."
    assert about == (
        "Held: at least 90% of the accuracy of the mean without attack (80%), in every run under attack. "
        "Broke: less than half of it, or a run did not converge."
    )


def test_one_seed_of_several_that_loses_more_is_enough_to_hold_no_longer(tmp_path):
    write_brief(tmp_path / "mean", "mean", "none", accuracy=0.8)
    for seed, end in enumerate((0.78, 0.79, 0.71)):
        write_brief(tmp_path / f"m{seed}", "mca", "lie", seed=seed, accuracy=end)
    assert "Lost: mca 4 points under lie. None of the rules held" in sentences(tmp_path)


@pytest.mark.parametrize("given", [("lie",), ()])
def test_without_the_mean_to_compare_with_nothing_held_and_the_page_says_what_is_missing(given, tmp_path):
    for attack in given:
        write_brief(tmp_path / attack, "mean", attack, accuracy=0.78)
    for rule in ("krum", "mca"):
        write_brief(tmp_path / rule, rule, accuracy=0.8)
    lead, said = content(load(tmp_path)).findings
    assert lead.startswith("Under lie: ")
    assert "eld" not in lead
    assert said == "Missing, and needed for a verdict: the mean without attack."


def test_worst_cases_are_compared_between_rules_that_met_the_same_attacks(tmp_path):
    """Two sweeps in a folder: krum was tried under one easy attack, and must not win by it."""
    write_means(tmp_path, clean=0.8, lie=0.7, foe=0.6)
    for attack, end in (("lie", 0.75), ("foe", 0.77)):
        write_brief(tmp_path / f"mca-{attack}", "mca", attack, accuracy=end)
    write_brief(tmp_path / "krum", "krum", "ipm", accuracy=0.79)
    assert sentences(tmp_path).startswith("Worst of 2 attacks: mean 60%, mca 75%, the mean without attack 80%.")
    assert card(tmp_path, "Best worst case") == ("75%", "mca · exact, under lie")


def test_a_rule_of_two_sweeps_is_compared_within_one_of_them(tmp_path):
    """The mean is in both sweeps, each other rule in one: neither rule may win by the easier of them."""
    for rounds, (rule, ends) in {9: ("krum", (0.7, 0.75)), 20: ("mca", (0.78, 0.79))}.items():
        for attack, end in (("none", 0.8), ("lie", 0.6), ("foe", 0.5)):
            write_brief(tmp_path / f"mean-{attack}{rounds}", "mean", attack, accuracy=end, data={"resize": rounds})
        for attack, end in zip(("lie", "foe"), ends, strict=True):
            write_brief(tmp_path / f"{rule}-{attack}", rule, attack, accuracy=end, data={"resize": rounds})
    assert sentences(tmp_path).startswith("Worst of 2 attacks with data.resize = 9: mean 50%, krum 70%, the mean")
    assert card(tmp_path, "Best worst case") == ("70%", "krum · exact · data.resize = 9, under lie")


def test_a_rule_with_more_attacks_or_sketches_is_compared_by_those_that_the_others_have(tmp_path):
    write_means(tmp_path, clean=0.8, lie=0.7, foe=0.6)
    ends = {
        ("krum", "lie"): 0.76,
        ("krum", "foe"): 0.77,
        ("krum", "ipm"): 0.2,
        ("mca", "lie"): 0.75,
        ("mca", "foe"): 0.75,
    }
    for (rule, attack), end in ends.items():
        write_brief(tmp_path / f"{rule}-{attack}", rule, attack, accuracy=end)
    for attack in ("lie", "foe"):
        write_brief(tmp_path / f"bad-{attack}", "krum", attack, "bad", accuracy=0.1)
    assert sentences(tmp_path).startswith("Worst of 2 attacks: mean 60%, krum (exact) 76%, the mean")
    assert "Take mca here: of the rules that held" in sentences(tmp_path)


def test_where_the_mean_held_too_no_rule_is_advised(tmp_path):
    write_means(tmp_path, clean=0.8, lie=0.79, foe=0.78)
    for attack in ("lie", "foe"):
        write_brief(tmp_path / attack, "mca", attack, accuracy=0.795)
    assert "The mean held too: these attacks call for no robust rule." in sentences(tmp_path)
    assert "Take" not in sentences(tmp_path)


def test_a_model_that_is_no_longer_finite_has_no_accuracy_in_the_headline(tmp_path):
    write_means(tmp_path, clean=0.8)
    write_brief(tmp_path / "lie", "mean", "lie", accuracy=0.4, converged=False, status="diverged")
    assert sentences(tmp_path).startswith("Under lie: mean not converged, the mean without attack 80%.")


def test_where_the_mean_without_attack_did_not_converge_no_rule_is_said_to_have_failed(tmp_path):
    for rule in ("mean", "krum"):
        for attack in ("none", "lie"):
            write_brief(tmp_path / f"{rule}-{attack}", rule, attack, accuracy=0.15, converged=False)
    write_brief(tmp_path / "mca", "mca", "lie", accuracy=0.3)
    lead, _ = content(load(tmp_path)).findings
    assert lead == (
        "Under lie: mean 15%, mca 30%, the mean without attack not converged. Even the mean without attack "
        "did not converge: train longer, or with another step size, to judge rules. One seed."
    )


def test_perplexity_is_judged_by_what_it_gains(tmp_path):
    ends = {("mean", "none"): 10.0, ("mca", "lie"): 11.0, ("krum", "lie"): 12.0, ("cge", "lie"): 21.0}
    for (rule, attack), end in ends.items():
        write_brief(tmp_path / f"{rule}-{attack}", rule, attack, perplexity=end)
    write_brief(tmp_path / "mean-lie", "mean", "lie", perplexity=500.0, converged=False)
    lead, about = content(load(tmp_path)).findings
    assert lead.startswith("Under lie: mean 500.00, mca 11.00, the mean without attack 10.00.")
    assert "Held: mca. Lost: krum 2.00 under lie. Broke: mean under lie; cge under lie." in lead
    assert "at most 11% above the perplexity of the mean without attack (10.00)" in about
    assert card(tmp_path, "Lowest perplexity") == ("11.00", "mca · exact")
    (row,) = [row for row in data(content(load(tmp_path)))["runs"] if row["rule"] == "mca"]
    assert (row["last_perplexity"], row["last_accuracy"]) == (11.0, None)


@pytest.mark.parametrize("metric", ["accuracy", "perplexity"])
def test_a_mean_that_ended_at_zero_can_be_compared_with(metric, tmp_path):
    pytest.importorskip("matplotlib")
    for rule, attack in (("mean", "none"), ("mca", "lie")):
        write_brief(tmp_path / rule, rule, attack, **{metric: 0.0})
    assert "Held: mca." in write(tmp_path).content.findings[0]


def test_images_and_text_of_one_sweep_are_judged_apart(tmp_path):
    for name, ends in {"accuracy": (0.8, 0.2, 0.79), "perplexity": (8.0, 40.0, 8.1)}.items():
        for (rule, attack), end in zip((("mean", "none"), ("mean", "foe"), ("mca", "foe")), ends, strict=True):
            given = {name: end, "data": {"name": name}}
            write_brief(tmp_path / f"{name}-{rule}-{attack}", rule, attack, **given)
    said = sentences(tmp_path)
    assert "By accuracy: Under foe: mean 20%, mca 79%, the mean without attack 80%. Held: mca. Broke: mean" in said
    assert "By perplexity: Under foe: mean 40.00, mca 8.10, the mean without attack 8.00. Held: mca. Broke: me" in said


def test_a_rule_that_failed_with_some_seeds_is_not_the_best(tmp_path):
    for seed in range(3):
        for attack in ("lie", "foe"):
            survives = seed == 0
            last = 0.9 if survives else 0.1
            write_brief(tmp_path / f"k{seed}{attack}", "krum", attack, seed=seed, accuracy=last, converged=survives)
            write_brief(tmp_path / f"m{seed}{attack}", "mca", attack, seed=seed)
    write_means(tmp_path)
    value, note = card(tmp_path, "Best worst case")
    assert value == "80%"
    assert note.startswith("mca")
    assert "Broke: krum under foe and lie" in sentences(tmp_path)


def test_a_rule_that_broke_in_one_of_several_settings_is_named_with_it(tmp_path):
    for model, last in (("logistic", 0.79), ("cnn", 0.1)):
        write_brief(tmp_path / f"mean-{model}", "mean", "none", accuracy=0.8, model={"name": model})
        write_brief(tmp_path / f"krum-{model}", "krum", "lie", accuracy=last, model={"name": model})
    assert "Broke: krum under lie with model.name = cnn." in sentences(tmp_path)


def test_server_times_of_different_models_and_machines_are_kept_apart(tmp_path):
    for model, server in (("logistic", 0.002), ("cnn", 0.05)):
        write_brief(tmp_path / model, server=server, model={"name": model})
    times = data(content(load(tmp_path)))["times"]
    assert {(time["other"], time["seconds"]) for time in times} == {
        ("model.name = logistic", 0.002),
        ("model.name = cnn", 0.05),
    }
    write_brief(tmp_path / "gpu", server=0.001, model={"name": "cnn"}, machine="a GPU")
    times = {time["other"]: time["seconds"] for time in data(content(load(tmp_path)))["times"]}
    assert times["model.name = cnn, a laptop"] == 0.05
    assert times["model.name = cnn, a GPU"] == 0.001


@pytest.mark.parametrize("zeros", [True, False])
def test_refused_rounds_take_no_part_in_server_times(zeros, tmp_path):
    folder = write_brief(tmp_path / "a", rounds=5, server=0.4)
    lines = results.read(folder).lines()
    for line in lines[1:4]:
        line["weights"] = None
        for part in ("sketch", "weigh", "combine"):
            line["seconds"].pop(part)
            if zeros:
                line["seconds"][part] = 0.0
    rewrite(folder, lines)
    found = data(content(load(folder)))
    assert found["runs"][0]["server_seconds"] == 0.4
    assert (found["times"][0]["seconds"], found["times"][0]["parts"]) == (0.4, [0.2, 0.1, 0.1])


def test_a_run_whose_every_round_was_refused_has_no_server_time(tmp_path):
    found = data(content(load(write_brief(tmp_path / "a", server=None, weighs=False))))
    assert (found["times"], found["runs"][0]["server_seconds"]) == ([], None)


def rewrite(folder, lines):
    plain = [{key: value for key, value in line.items() if key != "crc"} for line in lines]
    (folder / results.NAME).write_bytes(b"".join(map(results.encode, plain)))


def test_any_field_may_be_missing(tmp_path):
    whole = results.read(write_run(tmp_path / "whole", rounds=4, clients=6)).lines()
    needed = {"kind", "crc", "version", "round", "clients"}
    for n, line in ((0, whole[0]), (2, whole[2]), (len(whole) - 1, whole[-1])):
        for gone in sorted(set(line) - needed):
            lines = [*whole[:n], {key: value for key, value in line.items() if key != gone}, *whole[n + 1 :]]
            folder = tmp_path / f"{line['kind']}-{gone}"
            folder.mkdir()
            rewrite(folder, lines)
    bare = [{key: value for key, value in line.items() if key in needed} for line in whole]
    (tmp_path / "bare").mkdir()
    rewrite(tmp_path / "bare", bare)
    found = load(tmp_path)
    assert found.broken == []
    assert len(found.runs) > 25
    for run in found.runs:
        assert page(content(load(tmp_path / run.folder)))
    assert math.isnan(load(tmp_path / "bare").runs[0].last)


def test_exact_weights_are_compared_with_weights_or_not_at_all(tmp_path):
    folder = write_run(tmp_path / "a", rounds=4, clients=6)
    lines = results.read(folder).lines()
    assert "exact_weights" in lines[2]
    rewrite(folder, [*lines[:2], {**lines[2], "weights": None}, *lines[3:]])
    assert load(folder).runs[0].exact_rounds.tolist() == [3]


@pytest.mark.parametrize(
    ("rule", "rounds", "wanted"),
    [
        ("krum", 0, "No round is done yet."),
        ("krum", 2, "No round gave weights, so there are no suspects."),
        ("nnm >> trimmed-mean", 2, "The rule gives no weights, so there are no suspects."),
    ],
)
def test_only_a_coordinatewise_rule_is_reported_to_give_no_weights(rule, rounds, wanted, tmp_path):
    # A round that was refused has no server time.
    server = 0.3 if ">>" in rule else None
    folder = write_brief(tmp_path / "a", rule, rounds=rounds, server=server, weighs=False, known=False, ends=False)
    assert sentences(folder).startswith(wanted)
    assert data(content(load(folder)))["runs"][0]["coordinatewise"] is (">>" in rule)


def write_deployment(folder, weights, quarantined=()):
    """Rounds of a deployment: what each of five clients got, and who was quarantined."""
    ids = ["amy", "bob", "cal", "dan", "eve"]
    lines = [{"kind": "run", "version": 1, "id": "a", "clients": ids, "byzantine": None, "config": {}}]
    gone = dict.fromkeys(quarantined, "it holds NaN")
    for t, row in enumerate(weights, start=1):
        lines.append({"kind": "round", "round": t, "clients": ids, "weights": row, "quarantined": gone})
    folder.mkdir()
    rewrite(folder, lines)
    return folder


def test_suspects_were_quarantined_or_left_out_more_often_than_chance_explains(tmp_path):
    fair = [[0.25 * (i != t % 4) / 0.75 for i in range(4)] + [0.0] for t in range(8)]
    found = sentences(write_deployment(tmp_path / "a", fair, ["bob"]))
    assert found.startswith(
        "2 suspects among 5 clients: bob (quarantined in 8 of 8 rounds) and eve (left out of 8 of 8"
    )
    krum = [[float(i == t % 5) for i in range(5)] for t in range(4)]
    assert sentences(write_deployment(tmp_path / "b", krum)).startswith("No suspects: chance explains")


def test_no_name_reverses_the_text_or_is_invisible(tmp_path):
    ids = ["\u202eevil", "bank-7", "bank\u200b-7", "\u2066\x1b[2J"]
    evil = "\u202eevil"
    write_brief(tmp_path / "a", evil, evil, evil, ids=ids, known=False, **{evil: evil, "list": [evil]})
    write_brief(tmp_path / "b", ids=ids, known=False)
    made = content(load(tmp_path), title=evil)
    shown = json.dumps([made.title, made.findings, data(made)], ensure_ascii=False)
    assert shown.isprintable()
    (cohort,) = data(made)["cohorts"]
    assert cohort["ids"] == ("\ufffdevil", "bank-7", "bank\ufffd-7", "\ufffd\ufffd[2J")


def test_a_report_imports_nothing_that_a_run_names(tmp_path, monkeypatch):
    (tmp_path / "plugged_in.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    name = "plugged_in:Thing"
    runs = tmp_path / "runs"
    write_brief(runs / "a", name, name, name, data={"name": name}, model={"name": name})
    write_brief(runs / "b", f"nnm >> {name}", data={"name": name})
    found = data(content(load(runs)))
    assert found["rules"] == [name, f"nnm >> {name}"]
    assert "plugged_in" not in sys.modules
