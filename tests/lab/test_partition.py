"""Splits: every example once, nobody below a batch, and the moments that the names promise."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bartizan.lab.data.partition import SPLITS, counts, split

LABELS = np.random.default_rng(1).permutation(np.repeat(np.arange(10), 300))
CASES = {
    "dirichlet 0.2": ("dirichlet", {"beta": 0.2}),
    "dirichlet 0.6": ("dirichlet", {"beta": 0.6}),
    "dirichlet tiny": ("dirichlet", {"beta": 1e-6}),
    "dirichlet huge": ("dirichlet", {"beta": 1e6}),
    "client-dirichlet 0.2": ("client-dirichlet", {"beta": 0.2}),
    "client-dirichlet 0.6": ("client-dirichlet", {"beta": 0.6}),
    "client-dirichlet tiny": ("client-dirichlet", {"beta": 1e-6}),
    "client-dirichlet huge": ("client-dirichlet", {"beta": 1e6}),
    "iid": ("iid", {}),
    "shards": ("shards", {}),
    "three shards": ("shards", {"per_client": 3}),
    "similarity 0": ("similarity", {"gamma": 0.0}),
    "similarity half": ("similarity", {"gamma": 0.5}),
    "similarity 1": ("similarity", {"gamma": 1.0}),
}


def parts_of(case, n_clients=50, seed=0, labels=LABELS, least=32):
    kind, settings = CASES[case]
    return split(kind, labels, n_clients, np.random.default_rng(seed), least=least, **settings)


@pytest.mark.parametrize("case", CASES)
def test_a_seed_gives_one_split_of_all_examples_and_another_gives_another(case):
    one, same, other = parts_of(case), parts_of(case), parts_of(case, seed=1)
    assert all(np.array_equal(a, b) for a, b in zip(one, same, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))
    assert np.array_equal(np.sort(np.concatenate(one)), np.arange(len(LABELS)))
    assert min(map(len, one)) >= 32
    assert all(part.dtype == np.int64 and np.all(np.diff(part) > 0) for part in one)


@settings(deadline=None)
@given(
    st.sampled_from(sorted(CASES)),
    st.lists(st.integers(0, 4), min_size=1, max_size=60),
    st.integers(1, 12),
    st.integers(0, 6),
    st.integers(0, 2**32),
)
def test_odd_sets_are_divided_completely_or_refused_with_numbers(case, labels, n_clients, least, seed):
    shards = CASES[case][1].get("per_client", 2) if "shards" in case else 0
    if n_clients * max(least, shards) > len(labels):
        with pytest.raises(ValueError, match=f"need .*got {len(labels)}"):
            parts_of(case, n_clients, seed, np.array(labels), least)
        return
    parts = parts_of(case, n_clients, seed, np.array(labels), least)
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(labels)))
    assert min(map(len, parts)) >= least


@pytest.mark.parametrize("beta", [0.05, 0.2, 0.6, 5.0])
def test_dirichlet_shares_have_their_mean_and_variance(beta):
    # Fixed seeds; for fresh ones each bound of 5 standard errors would fail once in 1.7 million.
    M, n, draws = 20, 20_000, 400
    labels = np.zeros(n, int)
    shares = np.array(
        [
            counts(split("dirichlet", labels, M, np.random.default_rng(seed), least=0, beta=beta), labels, 1)[:, 0] / n
            for seed in range(draws)
        ]
    )
    variance = (M - 1) / (M**2 * (M * beta + 1))
    first = shares[:, 0]
    assert abs(first.mean() - 1 / M) < 5 * np.sqrt(variance / draws)
    spreads = ((shares - 1 / M) ** 2).mean(axis=1)
    assert abs(spreads.mean() - variance) < 5 * spreads.std() / np.sqrt(draws) + 1 / n


def test_classes_are_divided_independently():
    labels = np.repeat([0, 1], 5000)
    pairs = np.array(
        [
            counts(split("dirichlet", labels, 5, np.random.default_rng(seed), least=0, beta=0.5), labels, 2)[0]
            for seed in range(400)
        ]
    )
    # The correlation of 400 independent pairs lies within 5 / 20 but for a probability below one in a million.
    assert abs(np.corrcoef(pairs.T)[0, 1]) < 0.25


@pytest.mark.parametrize("case", [case for case in CASES if case.startswith("client")])
@pytest.mark.parametrize("n_clients", [7, 50])
def test_clients_with_distributions_of_their_own_have_equal_sizes(case, n_clients):
    sizes = [len(part) for part in parts_of(case, n_clients)]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("beta", [0.2, 0.6, 5.0])
def test_a_client_draws_its_labels_from_a_dirichlet_distribution(beta):
    # One client of 400 in a set so large that no class runs out for it: its first 100 labels, of K classes.
    # With q ~ Dir(beta), E sum_c (n_c / n)^2 = 1/n + (1 - 1/n) (beta + 1) / (K beta + 1). Fixed seeds; for fresh
    # ones a bound of 5 standard errors would fail once in 1.7 million.
    K, M, n = 10, 400, 100
    labels = np.repeat(np.arange(K), 4 * n * M // K)
    parts = split("client-dirichlet", labels, M, np.random.default_rng(0), least=0, beta=beta)
    assert {len(part) for part in parts} == {4 * n}
    few = [np.random.default_rng(j).choice(part, n, replace=False) for j, part in enumerate(parts)]
    squares = ((counts(few, labels, K) / n) ** 2).sum(axis=1)
    wanted = 1 / n + (1 - 1 / n) * (beta + 1) / (K * beta + 1)
    assert abs(squares.mean() - wanted) < 5 * squares.std() / np.sqrt(M) + 0.1 * wanted  # classes that run out


def main_part(parts):
    held = counts(parts, LABELS, 10)
    return (held.max(axis=1) / held.sum(axis=1)).mean()


def test_a_large_beta_is_nearly_iid_and_a_small_one_nearly_one_class():
    even = counts(parts_of("dirichlet huge", 10), LABELS, 10)
    assert np.all(np.abs(even - 30) <= 1)
    # With so small a beta a class goes whole to one client.
    alone = counts(parts_of("dirichlet tiny", 50, least=0), LABELS, 10)
    assert set(np.unique(alone)) == {0, 300}
    for kind in ("dirichlet", "client-dirichlet"):
        unlike, alike = (main_part(parts_of(f"{kind} {beta}")) for beta in (0.2, 0.6))
        assert unlike > alike > main_part(parts_of("iid"))


def test_iid_parts_differ_by_one_in_size_and_hold_all_classes_alike():
    sizes = [len(part) for part in parts_of("iid", 7)]
    assert max(sizes) - min(sizes) <= 1
    # 428 or 429 of 3000 drawn without replacement: standard deviation 6 per class; 5 of them in 70 cells: 1 in 25,000.
    assert np.all(np.abs(counts(parts_of("iid", 7), LABELS, 10) - 300 / 7) < 30)


def test_a_client_of_two_shards_holds_two_classes_or_fewer():
    held = counts(parts_of("shards"), LABELS, 10)
    assert np.all((held > 0).sum(axis=1) <= 2)
    assert np.all(held.sum(axis=1) == 60)


def test_similarity_goes_from_sorted_to_iid():
    assert np.all((counts(parts_of("similarity 0"), LABELS, 10) > 0).sum(axis=1) == 1)
    parts = [main_part(parts_of(case)) for case in ("similarity 0", "similarity half", "similarity 1")]
    assert parts[0] == 1
    assert 0.5 < parts[1] < 0.65
    assert parts[2] < 0.25
    sizes = {len(part) for part in split("similarity", LABELS[:-7], 50, np.random.default_rng(0), least=1, gamma=0.3)}
    assert max(sizes) - min(sizes) <= 1


def test_only_the_richest_give():
    kind, settings = CASES["dirichlet tiny"]
    before = [set(part) for part in split(kind, LABELS, 50, np.random.default_rng(0), least=0, **settings)]
    after = [set(part) for part in split(kind, LABELS, 50, np.random.default_rng(0), least=20, **settings)]
    gave = [len(one - two) for one, two in zip(before, after, strict=True)]
    for held, given_away, now in zip(before, gave, after, strict=True):
        assert len(now) == 20 if len(held) < 20 else now <= held
        if given_away:
            # All givers end level, as each example came from whoever had most.
            assert len(now) >= max(map(len, after)) - 1


REFUSED = {
    "has no setting 'gamma'; it takes beta": ("dirichlet", {"gamma": 1.0}),
    "has no setting 'beta'; it takes no settings": ("iid", {"beta": 1.0}),
    "Dirichlet needs beta": ("dirichlet", {}),
    "beta must lie from 1e-06 to 1e": ("dirichlet", {"beta": 0.0}),
    "gamma must lie from 0": ("similarity", {"gamma": 1.5}),
    "per_client must be": ("shards", {"per_client": 0}),
    "per_client can be at most 60": ("shards", {"per_client": 61}),
    "50 clients with at least 61 examples each need 3050, got 3000.* 49 clients": ("iid", {"least": 61}),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_be_is_refused_with_what_could(message):
    kind, settings = REFUSED[message]
    with pytest.raises((ValueError, TypeError), match=message):
        split(kind, LABELS, 50, np.random.default_rng(0), **{"least": 1} | settings)


def test_every_split_is_tested_here():
    assert {kind for kind, _ in CASES.values()} == set(SPLITS) - {"natural"}  # which draws nothing: see test_text
