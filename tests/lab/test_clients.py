"""Clients: every pass gives the loop's gradients, and what is sent depends on nothing but the seed."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from bartizan.lab import models  # noqa: E402
from bartizan.lab.config.sections import ClientsSettings as Work  # noqa: E402
from bartizan.lab.config.sections import ServerSettings  # noqa: E402
from bartizan.lab.data import Images  # noqa: E402
from bartizan.lab.data.device_images import OnDevice  # noqa: E402
from bartizan.lab.training import reproducible  # noqa: E402
from bartizan.lab.training.clients import Clients, batches, clients_at_once  # noqa: E402
from bartizan.lab.training.evaluation import backdoor_rate, evaluate  # noqa: E402
from bartizan.lab.training.flat_model import FlatLayout  # noqa: E402
from bartizan.lab.training.gradients import Grouped, Loop, Vmapped  # noqa: E402
from bartizan.lab.training.server import Server  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


def pictures(n=200, shape=(1, 12, 12), n_classes=4):
    """Noise, the brighter the higher the class."""
    rng = np.random.default_rng(0)
    labels = rng.integers(n_classes, size=n)
    pixels = rng.integers(100, size=(n, *shape)) + 40 * labels[:, None, None, None]
    return OnDevice(Images(pixels.astype(np.uint8), labels))


def parts(sizes=(40, 8, 64, 30)):
    ends = np.cumsum(sizes)
    return [torch.arange(end - size, end) for end, size in zip(ends, sizes, strict=True)]


def cnn(norm="group"):
    model = models.build("cnn", 4, (1, 12, 12), norm)
    return model, FlatLayout.of(model).read(model)


def problem(name, norm, shape=(1, 12, 12), clients=2, batch=4):
    model = models.build(name, 4, shape, norm, seed=1).double()
    g = torch.Generator().manual_seed(0)
    images = torch.randn(clients, batch, *shape, generator=g, dtype=torch.float64)
    labels = torch.randint(4, (clients, batch), generator=g)
    flat = FlatLayout.of(model)
    weights = flat.read(model)
    rows = weights + 0.01 * torch.rand(clients, flat.size, generator=g, dtype=torch.float64)
    return model, weights, rows, images, labels


MODELS = [("cnn", "group", (1, 12, 12)), ("cnn", "batch", (1, 12, 12)), ("cnn", "none", (3, 9, 11))]
MODELS += [("logistic", "none", (1, 12, 12)), ("resnet18", "group", (3, 8, 8)), ("resnet18", "batch", (3, 8, 8))]
MODELS += [("mobilenet-v3-small", "group", (3, 16, 16)), ("mobilenet-v3-small", "batch", (3, 16, 16))]
MODELS += [("efficientnet-lite0", "batch", (3, 16, 16))]


@pytest.mark.gpu
@pytest.mark.parametrize("device", ["cpu", *(["cuda"] if torch.cuda.is_available() else [])])
@pytest.mark.parametrize(("name", "norm", "shape"), MODELS)
@pytest.mark.parametrize("shared", [True, False])
def test_gradients_of_many_are_the_loops(name, norm, shape, shared, device):
    model, weights, rows, images, labels = (x.to(device) for x in problem(name, norm, shape))
    at = weights if shared else rows
    wanted = Loop(model)(at, images, labels)
    for kind in (Vmapped, Grouped):
        before = {key: value.clone() for key, value in model.state_dict().items()}
        got = kind(model)(at, images, labels)
        torch.testing.assert_close(got.rows, wanted.rows, rtol=1e-9, atol=1e-11)
        torch.testing.assert_close(got.losses, wanted.losses, rtol=1e-9, atol=1e-11)
        assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize(("kernel", "padding", "groups"), [(3, 1, 1), (3, 0, 2), (1, 0, 1), (1, 1, 1), (5, 2, 4)])
@pytest.mark.parametrize("shared", [True, False])
def test_a_convolution_of_any_form_is_torchs(stride, kernel, padding, groups, shared):
    nn = torch.nn
    torch.manual_seed(3)
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3),
        nn.ReLU(inplace=True),
        nn.Conv2d(4, 8, kernel, stride, padding, groups=groups),
        nn.ReLU(inplace=True),
        nn.Flatten(),
        nn.LazyLinear(4),
    ).double()
    images = torch.randn(3, 4, 3, 11, 9, dtype=torch.float64)
    model(images[0])
    labels = torch.randint(4, (3, 4))
    weights = FlatLayout.of(model).read(model)
    at = weights if shared else weights + 0.01 * torch.rand(3, len(weights), dtype=torch.float64)
    torch.testing.assert_close(Grouped(model)(at, images, labels).rows, Loop(model)(at, images, labels).rows)


def test_a_model_with_layers_of_another_kind_is_vmapped():
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(144, 4), torch.nn.PReLU())
    assert not Grouped.fits(model)
    clients = Clients(model, pictures(), parts(), Work(batch=4))
    assert isinstance(clients.gradients, Vmapped)
    assert clients.updates(FlatLayout.of(model).read(model), [0, 2], 1).updates.isfinite().all()


def test_dropout_is_off():
    nn = torch.nn
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.9), nn.Linear(144, 4))
    weights = FlatLayout.of(model).read(model)
    images, labels = torch.randn(2, 3, 1, 12, 12), torch.zeros(2, 3, dtype=torch.long)
    plain = Loop(nn.Sequential(nn.Flatten(), nn.Identity(), model[2]))(weights, images, labels)
    for kind in (Loop, Vmapped, Grouped):
        torch.testing.assert_close(kind(model)(weights, images, labels).rows, plain.rows)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(("name", "norm", "shape"), MODELS)
def test_images_in_float16_are_classified_as_in_float32(name, norm, shape):
    model, weights, *_ = (x.cuda() for x in problem(name, norm, shape, clients=1))
    rng = np.random.default_rng(0)
    test = Images(rng.integers(256, size=(600, *shape)).astype(np.uint8), rng.integers(4, size=600))
    on_device, model, weights = OnDevice(test, "cuda", flip=False), model.float(), weights.float()
    for own in (False, True):
        wanted, got = (evaluate(model, weights, on_device, batch_statistics=own, half=half) for half in (False, True))
        # By running statistics it computes in float16, in which images of noise may change their class.
        assert got[1] == pytest.approx(wanted[1], rel=0.02)
        assert not own or got[0] == pytest.approx(wanted[0], abs=0.02)


def test_a_pass_in_bfloat16_is_near_and_returns_float32():
    model, weights, _, images, labels = problem(*MODELS[1])
    model, *given = model.float(), weights.float(), images.float(), labels
    wanted, got = (Loop(model, precision=one)(*given) for one in (torch.float32, torch.bfloat16))
    assert got.rows.dtype == torch.float32
    # A digit of bfloat16 is 2^-8; a gradient of three layers is off by a few of them, and not equal.
    assert 1e-4 < float((got.rows - wanted.rows).norm() / wanted.rows.norm()) < 0.2


def test_what_only_a_gpu_can_do_is_refused_on_a_processor():
    with pytest.raises(ValueError, match="are for a GPU; these clients are on cpu"):
        Clients(models.build("cnn", 4, (1, 12, 12)), pictures(), parts(), Work(compiled=True))


WORKS = [
    Work(batch=16),
    Work(batch=16, work="steps", local=3, step_size=0.1, momentum=0.9),
    Work(batch=16, work="epochs", local=2, step_size=0.1),
]


def by_torch(model, images, indices, work):
    """One client with torch's own optimiser."""
    model = copy.deepcopy(model).train()
    before = FlatLayout.of(model).read(model)
    optimiser = torch.optim.SGD(model.parameters(), lr=work.step_size, momentum=work.momentum)
    losses = []
    for where in torch.from_numpy(indices):
        optimiser.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(images.batch(where)), images.labels[where])
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return before - FlatLayout.of(model).read(model), np.mean(losses)


@pytest.mark.parametrize("work", WORKS[1:], ids=repr)
@pytest.mark.parametrize("norm", ["group", "batch"])
def test_local_work_is_torchs_sgd(work, norm):
    (model, weights), images = cnn(norm), pictures()
    sent = Clients(model, images, parts(), work, at_once=3).updates(weights, [0, 1, 2, 3], 5)
    for m, part in enumerate(parts()):
        indices = batches(part.numpy(), work, reproducible.generator(0, "batches", 5, m))
        wanted, loss = by_torch(model, images, indices, work)
        torch.testing.assert_close(sent.updates[m], wanted, rtol=1e-4, atol=2e-5)
        assert sent.losses[m].item() == pytest.approx(loss, rel=1e-4)


@pytest.mark.parametrize("work", WORKS, ids=repr)
def test_a_client_sends_the_same_whoever_else_takes_part(work):
    model, weights = cnn("batch")
    together, in_twos = (Clients(model, pictures(), parts(), work, augment=True, at_once=n) for n in (4, 2))
    whole = together.updates(weights, [0, 1, 2, 3], 5)
    few = in_twos.updates(weights, [3, 1, 2], 5)
    torch.testing.assert_close(few.updates, whole.updates[[3, 1, 2]], rtol=1e-4, atol=2e-5)
    torch.testing.assert_close(few.losses, whole.losses[[3, 1, 2]], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("work", WORKS, ids=repr)
def test_what_is_sent_is_a_function_of_seed_and_round(work):
    model, weights = cnn()

    def sent(seed=0, round=5):
        clients = Clients(model, pictures(), parts(), work, augment=True, seed=seed)
        return clients.updates(weights, [0, 1, 2, 3], round).updates

    global_before = torch.get_rng_state()
    assert torch.equal(sent(), sent())
    assert not torch.equal(sent(), sent(seed=1))
    assert not torch.equal(sent(), sent(round=6))
    assert torch.equal(torch.get_rng_state(), global_before)


@pytest.mark.parametrize("work", [Work(batch=8), Work(batch=8, work="steps", local=3)], ids=repr)
def test_momentum_over_rounds_is_the_mean_of_a_clients_own_updates(work):
    """Compare with the definition on updates without momentum; a client that takes no part keeps its last update."""
    model = models.build("cnn", 4, (1, 12, 12), "batch")
    flat = FlatLayout.of(model)
    weights, n, beta = flat.read(model), flat.n_parameters, 0.8
    plain = Clients(model, pictures(), parts(), work)
    own = Clients(model, pictures(), parts(), replace(work, worker_momentum=beta))
    last: dict[int, torch.Tensor] = {}
    for t, who in enumerate([[0, 1, 2], [2, 3], [0, 3, 1], [2, 0]], start=1):
        alone, sent = plain.updates(weights, who, t).updates, own.updates(weights, who, t).updates
        for client, row, got in zip(who, alone, sent, strict=True):
            wanted = beta * last.get(client, torch.zeros(n)) + (1 - beta) * row[:n]
            torch.testing.assert_close(got[:n], wanted, rtol=1e-5, atol=1e-7)
            assert torch.equal(got[n:], row[n:])
            last[client] = wanted
    other = Clients(model, pictures(), parts(), replace(work, worker_momentum=beta))
    other.load_state_dict(copy.deepcopy(own.state_dict()))
    one, two = (clients.updates(weights, [3, 0], 9).updates for clients in (own, other))
    assert torch.equal(one, two)
    assert not plain.state_dict()


def test_an_update_that_is_not_finite_is_sent_and_forgotten():
    model, weights = cnn()
    clients = Clients(model, pictures(), parts(), Work(batch=8, worker_momentum=0.5))
    clients.updates(weights, [0], 1)
    kept = clients.sent[0].clone()
    assert not clients.updates(weights * float("nan"), [0], 2).updates.isfinite().any()
    assert torch.equal(clients.sent[0], kept)
    assert clients.updates(weights, [0], 3).updates.isfinite().all()


@pytest.mark.parametrize(
    "sent", [7, {"9": torch.zeros(3)}, {0: torch.zeros(3)}, {"0": torch.zeros(3)}, {"0": 1.0}, {"0": None}], ids=str
)
def test_a_clients_state_that_is_none_is_refused(sent):
    model = models.build("cnn", 4, (1, 12, 12))
    clients = Clients(model, pictures(), parts(), Work(batch=8, worker_momentum=0.5))
    with pytest.raises(ValueError, match="last update"):
        clients.load_state_dict({"sent": sent})
    assert not clients.sent


@pytest.mark.parametrize(("n", "batch"), [(40, 8), (41, 8), (8, 8), (5, 8), (3, 10)])
def test_batches_take_every_example_before_any_comes_again(n, batch):
    part = np.arange(100, 100 + n)
    taken = batches(part, Work(batch=batch, work="epochs", local=1), np.random.default_rng(0))
    assert taken.shape == (max(1, n // batch), batch)
    counts = np.bincount(taken.ravel() - 100, minlength=n)
    assert counts.sum() == taken.size
    assert counts.max() - counts.min() <= 1
    assert batches(part, Work(batch=batch, work="steps", local=7), np.random.default_rng(0)).shape == (7, batch)
    assert batches(part, Work(batch=batch), np.random.default_rng(0)).shape == (1, batch)


def test_as_many_at_once_as_fit_and_at_least_one():
    cpu = torch.device("cpu")
    small, large = (models.build(name, 4, (3, 32, 32)) for name in ("logistic", "resnet18"))
    assert clients_at_once(small, 32, (3, 32, 32), cpu) > 50
    assert clients_at_once(large, 32, (3, 32, 32), cpu) == 1


def test_training_learns_and_evaluation_says_so():
    (model, weights), images = cnn("batch"), pictures()
    clients = Clients(model, images, parts(), Work(batch=16))
    server = Server(weights, FlatLayout.of(model).n_parameters, ServerSettings("momentum"), step_size=0.05)
    before, _ = evaluate(model, server.weights, images)
    losses = []
    for round in range(30):
        sent = clients.updates(server.weights, [0, 1, 2, 3], round)
        server.step(sent.updates.mean(0))
        losses.append(sent.losses.mean().item())
    after, loss = evaluate(model, server.weights, images, batch=77)
    assert losses[-1] < losses[0] / 2
    assert after > max(0.8, before)
    loaded = copy.deepcopy(model)
    loaded.load_state_dict(FlatLayout.of(model).named(server.weights), strict=False)
    outputs = loaded.eval()(images.batch(torch.arange(len(images))))
    assert after == pytest.approx((outputs.argmax(1) == images.labels).float().mean().item())
    assert loss == pytest.approx(torch.nn.functional.cross_entropy(outputs, images.labels).item(), rel=1e-4)


def test_evaluation_by_the_batchs_statistics_is_that_of_training_and_changes_nothing():
    model, images = models.build("mobilenet-v3-small", 4, (1, 12, 12), "batch"), pictures()
    flat = FlatLayout.of(model)
    weights = flat.read(model)
    weights[flat.n_parameters :] = 3.0  # running statistics that no batch has
    before = weights.clone()
    running, batch = (evaluate(model, weights, images, batch_statistics=own)[1] for own in (False, True))
    loaded = copy.deepcopy(model).train()
    for module in loaded.modules():
        if isinstance(module, torch.nn.Dropout):
            module.eval()
    outputs = loaded(images.batch(torch.arange(len(images))))
    assert batch == pytest.approx(torch.nn.functional.cross_entropy(outputs, images.labels).item(), rel=1e-4)
    assert batch != pytest.approx(running, rel=1e-3)
    assert torch.equal(weights, before)
    pieces = evaluate(model, weights, images, batch=len(images) - 1, batch_statistics=True)[1]
    assert pieces == pytest.approx(batch, rel=0.5), "two halves, and no batch of one image"


def test_a_backdoor_counts_other_classes_only():
    model, images = models.build("logistic", 4, (1, 12, 12)), pictures()
    weights = FlatLayout.of(model).read(model)
    weights[-4 + 2] = 1.0  # its bias: all images are of class 2
    assert backdoor_rate(model, weights, images, target=2) == 1.0
    assert backdoor_rate(model, weights, images, target=1) == 0.0
