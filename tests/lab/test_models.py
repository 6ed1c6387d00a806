"""Models: counts, names and shapes as torchvision's, forms for smaller images, weights by the seed alone."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from bartizan.lab.models import MODELS, build  # noqa: E402
from bartizan.lab.models.layers import AdaptivePool  # noqa: E402
from bartizan.lab.training.flat_model import FlatLayout  # noqa: E402

COUNTS = [
    ("resnet18", "batch", 11_689_512, 4_800 * 2),
    ("mobilenet-v3-large", "batch", 5_483_032, 12_200 * 2),
    ("mobilenet-v3-small", "batch", 2_542_856, 6_056 * 2),
]
SMALL = ["resnet18", "mobilenet-v3-small", "mobilenet-v3-large", "cnn", "logistic"]


def count(model):
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(("name", "norm", "parameters", "statistics"), COUNTS)
def test_counts_are_the_known_ones(name, norm, parameters, statistics):
    model = build(name, 1000, (3, 224, 224), norm)
    assert count(model) == FlatLayout.of(model).n_parameters == parameters
    assert FlatLayout.of(model).size - parameters == statistics


def test_vgg16_has_its_138_million_at_any_size(monkeypatch):
    for draw in ("kaiming_normal_", "kaiming_uniform_", "normal_", "uniform_"):  # drawing them takes seconds
        monkeypatch.setattr(torch.nn.init, draw, lambda tensor, *_, **__: tensor)
    for side in (28, 32, 64, 224):
        assert count(build("vgg16", 1000, (3, side, side), "none")) == 138_357_544
    assert count(build("vgg16", 1000, (3, 32, 32), "batch")) == 138_365_992


NAMES = {
    "resnet18": {
        "conv1.weight": (64, 3, 7, 7),
        "bn1.running_var": (64,),
        "layer1.0.conv1.weight": (64, 64, 3, 3),
        "layer2.0.downsample.0.weight": (128, 64, 1, 1),
        "layer2.0.downsample.1.num_batches_tracked": (),
        "layer4.1.bn2.bias": (512,),
        "fc.weight": (1000, 512),
    },
    "mobilenet-v3-small": {
        "features.0.0.weight": (16, 3, 3, 3),
        "features.1.block.0.0.weight": (16, 1, 3, 3),
        "features.1.block.1.fc1.bias": (8,),
        "features.4.block.1.0.weight": (96, 1, 5, 5),
        "features.12.1.running_mean": (576,),
        "classifier.3.weight": (1000, 1024),
    },
    "mobilenet-v3-large": {
        "features.1.block.1.0.weight": (16, 16, 1, 1),
        "features.4.block.2.fc2.weight": (72, 24, 1, 1),
        "features.16.0.weight": (960, 160, 1, 1),
        "classifier.0.weight": (1280, 960),
    },
}


@pytest.mark.parametrize("name", NAMES)
def test_names_and_shapes_are_torchvisions(name):
    """A sample; benchmarks/models_against_torchvision.py compares all of them."""
    shapes = {key: tuple(value.shape) for key, value in build(name, 1000, (3, 224, 224), "batch").state_dict().items()}
    assert NAMES[name].items() <= shapes.items()


@pytest.mark.parametrize("norm", ["group", "batch"])
@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("image", [(1, 28, 28), (3, 32, 32), (3, 64, 64)])
def test_every_image_size_has_a_form(name, norm, image):
    model = build(name, 7, image, norm)
    outputs = model(torch.randn(2, *image))
    assert outputs.shape == (2, 7)
    assert outputs.isfinite().all()


@pytest.mark.parametrize(("side", "first", "last"), [(32, 32, 4), (64, 32, 4), (224, 112, 7)])
def test_resnet18_makes_a_small_image_smaller_later(side, first, last):
    model, seen = build("resnet18", 10, (3, side, side)), []
    for layer in (model.conv1, model.layer4):
        layer.register_forward_hook(lambda module, given, out: seen.append(out.shape[-1]))
    model(torch.randn(1, 3, side, side))
    assert seen == [first, last]


@pytest.mark.parametrize("name", ["resnet18", "mobilenet-v3-small"])
def test_a_network_that_is_not_fitted_is_the_published_one(name):
    def shapes(model):
        strides = [layer.stride for layer in model.modules() if hasattr(layer, "stride")]
        return strides, {name: tensor.shape for name, tensor in model.state_dict().items()}

    small = build(name, 10, fitted=False)
    assert shapes(small) == shapes(build(name, 10, (3, 224, 224))) != shapes(build(name, 10))
    assert small(torch.randn(2, 3, 32, 32)).shape == (2, 10)


@pytest.mark.parametrize("name", ["cnn", "logistic", "vgg16"])
def test_other_networks_are_fitted_anyway(name):
    with torch.device("meta"):
        assert build(name, 10, fitted=False)(torch.randn(2, 3, 32, 32)).shape == (2, 10)


def test_group_norm_keeps_the_names_of_batch_norm():
    group, batch = (dict(build("resnet18", 10, norm=norm).named_parameters()) for norm in ("group", "batch"))
    assert {k: v.shape for k, v in group.items()} == {k: v.shape for k, v in batch.items()}


@pytest.mark.parametrize("name", ["resnet18", "mobilenet-v3-small", "cnn"])
def test_weights_are_a_function_of_the_seed_and_nothing_else_is_moved(name):
    before = torch.get_rng_state()
    one, same, other = (
        FlatLayout.of(model).read(model) for model in (build(name, 10, seed=seed) for seed in (3, 3, 4))
    )
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("side", [1, 2, 3, 7, 10])
def test_pooling_is_torchs(side):
    x = torch.randn(2, 3, side, side + (side > 1), dtype=torch.float64)
    torch.testing.assert_close(AdaptivePool(7)(x), torch.nn.AdaptiveAvgPool2d(7)(x))


def test_a_model_comes_back_from_its_vector():
    one, other = (build("cnn", 10, norm="batch", seed=seed) for seed in (0, 1))
    one(torch.randn(4, 3, 32, 32))
    flat = FlatLayout.of(one)
    other.load_state_dict(flat.named(flat.read(one)), strict=False)
    assert torch.equal(flat.read(other), flat.read(one))
    assert torch.equal(one.eval()(torch.ones(1, 3, 32, 32)), other.eval()(torch.ones(1, 3, 32, 32)))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (("resnet81", 10), r"Unknown model 'resnet81'. Did you mean 'resnet18'\?"),
        (("cnn", 1), "at least 2 classes"),
        (("cnn", 10, (3, 4, 4)), "at least 8 x 8 pixels, got 4 x 4"),
        (("vgg16", 10, (3, 8, 8)), "at least 16 x 16 pixels"),
        (("resnet18", 10, (3, 32, 32), "layer"), "norm must be one of batch, group, none, got 'layer'"),
    ],
)
def test_what_cannot_be_built_says_why(call, message):
    with pytest.raises(ValueError, match=message):
        build(*call)


def test_the_table_is_known():
    assert sorted(MODELS) == sorted([*SMALL, "vgg16"])
