"""The server: its optimisers against their formulas, its state, what it does with what is not finite."""

from __future__ import annotations

import io
import math
from importlib.util import find_spec

import pytest

torch = pytest.importorskip("torch")

from bartizan.lab.config.sections import ServerSettings as Settings  # noqa: E402
from bartizan.lab.training import optimisers  # noqa: E402
from bartizan.lab.training.server import MIN_VARIANCE, Server  # noqa: E402

needs_prodigyopt = pytest.mark.skipif(find_spec("prodigyopt") is None, reason="needs prodigyopt")
OPTIMISERS = [
    pytest.param(name, marks=needs_prodigyopt) if name == "prodigy" else name for name in optimisers.OPTIMISERS
]
TUNED = ["dog", "adagrad-norm"]
COSINE = Settings(schedule="cosine")


def gradient(w):
    return w * torch.linspace(0.5, 2, len(w))


def test_momentum_is_torchs():
    server = Server(torch.ones(7), 7, Settings("momentum"), step_size=0.1)
    w = torch.ones(7, requires_grad=True)
    theirs = torch.optim.SGD([w], lr=0.1, momentum=0.9)
    for _ in range(5):
        w.grad = gradient(w.detach())
        theirs.step()
        server.step(gradient(server.weights))
    torch.testing.assert_close(server.weights, w.detach())


@needs_prodigyopt
def test_prodigy_is_prodigyopts():
    from prodigyopt import Prodigy

    server = Server(torch.ones(7), 7, Settings("prodigy"), step_size=1.0)
    w = torch.ones(7, requires_grad=True)
    theirs = Prodigy([w])
    for _ in range(30):
        used = theirs.param_groups[0]["d"]
        w.grad = gradient(w.detach())
        theirs.step()
        assert server.step(gradient(server.weights)) == used
    assert torch.equal(server.weights, w.detach())
    assert used > 100 * 1e-6, "its step size has grown from 1e-6 by itself"


def adagrad_norm(w, rounds):
    squares = 0.0
    for _ in range(rounds):
        squares += w**2
        w -= w / math.sqrt(squares)
        yield w


def dog(w, rounds, relative=1e-6):
    seen, squares = [w], 1e-8
    for _ in range(rounds):
        squares += seen[-1] ** 2
        far = max([relative * (1 + abs(w)), *(abs(one - w) for one in seen)])
        seen.append(seen[-1] - far / math.sqrt(squares) * seen[-1])
        yield seen[-1]


@pytest.mark.parametrize(("optimiser", "sequence"), [("adagrad-norm", adagrad_norm), ("dog", dog)])
def test_a_tuned_step_size_follows_its_formula_down_a_parabola(optimiser, sequence):
    """The gradient of w^2 / 2 is w, so every number of the formula is a plain one."""
    server = Server(torch.tensor([3.0], dtype=torch.float64), 1, Settings(optimiser), step_size=1.0)
    ours = []
    for _ in range(200):
        server.step(server.weights.clone())
        ours.append(float(server.weights))
    assert ours == pytest.approx(list(sequence(3.0, 200)), rel=1e-9)
    assert abs(ours[-1]) < 0.2


def test_the_first_steps_of_tuned_step_sizes_are_those_computed_by_hand():
    used = {}
    for optimiser in TUNED:
        server = Server(torch.tensor([3.0, 4.0], dtype=torch.float64), 2, Settings(optimiser), step_size=1.0)
        used[optimiser] = [server.step(torch.tensor([0.0, 2.0])), server.step(torch.tensor([0.0, 1.0]))]
    assert used["adagrad-norm"] == pytest.approx([1 / 2, 1 / math.sqrt(5)])
    # |w_0| = 5, so r = 6e-6; the first step goes 6e-6 far, and no farther.
    assert used["dog"] == pytest.approx([6e-6 / 2, 6e-6 / math.sqrt(5)], rel=1e-8)


def test_dog_begins_with_longer_steps_where_there_is_batchnorm():
    without, with_it = (Server(torch.zeros(n), 1, Settings("dog"), step_size=1.0) for n in (1, 3))
    assert with_it.step(torch.ones(3)) == pytest.approx(100 * without.step(torch.ones(1)))


@pytest.mark.parametrize("optimiser", TUNED)
def test_a_gradient_of_zero_moves_nothing(optimiser):
    server = Server(torch.ones(4), 4, Settings(optimiser), step_size=1.0)
    for _ in range(3):
        server.step(torch.zeros(4))
    assert torch.equal(server.weights, torch.ones(4))


@pytest.mark.parametrize(
    ("optimiser", "change", "message"),
    [
        ("dog", {"squares": "1"}, "squares must be a number"),
        ("dog", {"squares": math.nan}, "squares must be a number, got nan"),
        ("dog", {"start": torch.ones(3)}, "start must be a tensor"),
        ("dog", {"distance": math.inf}, "distance must be a"),
        ("adagrad-norm", {"squares": None}, "squares must be a number"),
        ("dog", {"squares": -1.0}, "squares must be a number from 0"),
    ],
)
def test_a_tuned_state_that_is_not_sound_is_named(optimiser, change, message):
    server = Server(torch.ones(4), 4, Settings(optimiser), step_size=1.0)
    with pytest.raises((TypeError, ValueError), match=message):
        server.load_state_dict(server.state_dict() | change)


@pytest.mark.parametrize("optimiser", OPTIMISERS)
def test_a_saved_server_goes_on_as_the_other_would(optimiser):
    def fresh():
        return Server(torch.linspace(-1, 1, 9), 7, Settings(optimiser, schedule="cosine"), step_size=0.1, rounds=20)

    one = fresh()
    for _ in range(5):
        one.step(gradient(one.weights))
    file = io.BytesIO()
    torch.save(one.state_dict(), file)
    file.seek(0)
    other = fresh()
    other.load_state_dict(torch.load(file, weights_only=True))
    shared = fresh()
    shared.load_state_dict(one.state_dict())
    for _ in range(5):
        update = gradient(one.weights)
        assert one.step(update) == other.step(update) == shared.step(update)
        assert torch.equal(one.weights, other.weights)
        assert torch.equal(one.weights, shared.weights)


@pytest.mark.parametrize("optimiser", OPTIMISERS)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_an_update_that_is_not_finite_moves_nothing(optimiser, bad):
    server, twin = (Server(torch.ones(4), 4, Settings(optimiser), step_size=0.1) for _ in range(2))
    assert server.step(torch.tensor([1.0, bad, 0.0, 0.0])) == 0.0
    assert torch.equal(server.weights, torch.ones(4))
    for each in (server, twin):
        each.step(torch.ones(4))
    assert torch.equal(server.weights, twin.weights)


@pytest.mark.parametrize("optimiser", OPTIMISERS)
def test_statistics_move_by_the_update_itself_and_variances_stay_positive(optimiser):
    server = Server(torch.tensor([1.0, 0.0, 0.5, 1.0, 1.0]), 1, Settings(optimiser), step_size=0.01)
    server.step(torch.tensor([0.0, -0.25, 0.5, 0.5, 3.0]))
    torch.testing.assert_close(server.weights[1:], torch.tensor([0.25, 0.0, 0.5, MIN_VARIANCE]))


def test_a_cosine_schedule_starts_whole_and_ends_at_nothing():
    server = Server(torch.ones(2), 2, COSINE, step_size=2.0, rounds=4)
    used = [server.step(torch.zeros(2)) for _ in range(2)]
    server.skip()  # a round without an aggregate moves the schedule on
    used += [server.step(torch.zeros(2)) for _ in range(3)]
    assert used == pytest.approx([2 * (1 + math.cos(math.pi * min(t / 4, 1))) / 2 for t in (0, 1, 3, 4, 5)])


@pytest.mark.parametrize("round", [float("inf"), float("nan"), "1", None, 10**30])
def test_a_state_whose_round_is_no_whole_number_is_named(round):
    server = Server(torch.ones(4), 4, step_size=0.1)
    with pytest.raises(TypeError, match="round must be a whole number"):
        server.load_state_dict(server.state_dict() | {"round": round})
