"""The honest computation of the clients: local gradients or local SGD, many clients at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bartizan._util.types import Array
from bartizan.lab.config.sections import ClientsSettings
from bartizan.lab.torch_import import Tensor, functional, nn, torch
from bartizan.lab.training import reproducible
from bartizan.lab.training.flat_model import FlatLayout
from bartizan.lab.training.gradients import Grouped, Loop, Vmapped
from bartizan.lab.training.gradients.passes import Pass

if TYPE_CHECKING:
    from bartizan.lab.data.device_images import OnDevice
    from bartizan.lab.data.device_text import TextOnDevice

CACHE_BYTES = 2**27  # bytes: on a processor more clients at once are slower, as their images leave the cache


def batches(part: Array, work: ClientsSettings, rng: np.random.Generator) -> Array:
    """Draw a client's examples for a round, (steps, batch): its part is shuffled anew for every pass over it.

    No example comes twice in a pass; what is left of a pass and fills no batch is dropped. All batches have one size,
    so a client with fewer examples than a batch goes through them again, in another order, until it is full.

    >>> rng = np.random.default_rng(0)
    >>> batches(np.array([4, 5, 6]), ClientsSettings(batch=7), rng).shape
    (1, 7)
    """
    n, batch = len(part), work.batch
    in_part = max(1, n // batch)
    steps = {"gradient": 1, "steps": work.local, "epochs": work.local * in_part}[work.work]
    passes = []
    for _ in range(-(-steps // in_part)):
        orders = [rng.permutation(n) for _ in range(-(-batch * in_part // n))]
        passes.append(np.concatenate(orders)[: in_part * batch].reshape(in_part, batch))
    return part[np.concatenate(passes)[:steps]]


class ClientUpdates(NamedTuple):
    """The updates of m clients, one row per client, and their mean training losses."""

    updates: Tensor  # (m, size)
    losses: Tensor  # (m,)


class Clients:
    """Clients that hold a part of the images each.

    With work "gradient" a client sends the gradient on one batch, as in the paper's Algorithm 1. With "steps" or
    "epochs" it takes `local` steps of SGD, or passes over all its examples, on its own copy of the model, and sends the
    server's weights minus its own.

    With `worker_momentum` beta it sends beta v + (1 - beta) u for its update u and the v that it sent last, 0 at first,
    as Karimireddy et al. (2021) do. BatchNorm's statistics are sent as they are.
    """

    def __init__(
        self,
        model: nn.Module,
        images: OnDevice | TextOnDevice,
        parts: Sequence[Tensor],
        work: ClientsSettings = ClientsSettings(),
        *,
        seed: int = 0,
        augment: bool = False,
        at_once: int | None = None,
    ) -> None:
        """Hold the data of all clients.

        Args:
            model: The network; its own weights are not used.
            images: All images, on the device where clients compute.
            parts: The indices of each client's images; poisoned copies of images follow the original ones.
            work: Work of a client in a round, and its precision.
            seed: Of the batches and the augmentation.
            augment: Shift and mirror the images at random.
            at_once: How many clients are computed together; by default as many as fit into the cache or the GPU.
        """
        self.model, self.images, self.flat = model, images, FlatLayout.of(model)
        self.parts = [part.cpu().numpy() for part in parts]
        self.work, self.seed, self.augment = work, seed, augment
        device = images.labels.device
        self.gradients = _pass_for(model, device, work)
        self.at_once = at_once or clients_at_once(model, work.batch, images.shape, device)
        self.sent: dict[int, Tensor] = {}
        """Last update of each client, without statistics: the state that clients with momentum keep over the rounds."""

    def updates(self, weights: Tensor, clients: Sequence[int], round: int) -> ClientUpdates:
        """Compute the honest updates of these clients, which the server subtracts from its `weights`."""
        drawn = [
            batches(self.parts[c], self.work, reproducible.generator(self.seed, "batches", round, c)) for c in clients
        ]
        # The most steps first, so that the clients that still have some are always the first rows.
        order = sorted(range(len(clients)), key=lambda i: -len(drawn[i]))
        sent = ClientUpdates(weights.new_empty(len(clients), self.flat.size), weights.new_empty(len(clients)))
        for start in range(0, len(clients), self.at_once):
            some = order[start : start + self.at_once]
            rows = slice(start, start + len(some))
            augments = [self._augment(round, clients[i]) for i in some] if self.augment else []
            sent.losses[rows] = self._train(weights, [drawn[i] for i in some], augments, sent.updates[rows])
        if order != sorted(order):
            back = torch.tensor(np.argsort(order), device=weights.device)
            sent = ClientUpdates(sent.updates[back], sent.losses[back])
        if self.work.worker_momentum:
            for client, update in zip(clients, sent.updates[:, : self.flat.n_parameters], strict=True):
                update.lerp_(self.sent.get(client, torch.zeros_like(update)), self.work.worker_momentum)
                if bool(update.isfinite().all()):  # one step that overflows would stay for ever
                    self.sent[client] = update.clone()
        return sent

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a resumed run needs; empty without momentum."""
        return {"sent": {str(client): update for client, update in sorted(self.sent.items())}} if self.sent else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from such a state; ValueError if it is not one of these clients."""
        sent, size = state.get("sent", {}), (self.flat.n_parameters,)
        known = {str(client): client for client in range(len(self.parts))}
        if not isinstance(sent, dict) or (sent and not self.work.worker_momentum) or not known.keys() >= sent.keys():
            raise ValueError("clients must be the last updates of clients with momentum, by their numbers")
        for update in sent.values():
            if not isinstance(update, Tensor) or update.dtype != torch.float32 or tuple(update.shape) != size:
                raise ValueError(f"the last update of a client must be a tensor of float32 and shape {size}")
        self.sent = {known[name]: update.to(self.images.labels.device) for name, update in sent.items()}

    def _train(self, weights: Tensor, drawn: list[Array], augments: list[torch.Generator], out: Tensor) -> Tensor:
        """Write the updates of clients with these examples, the most steps first, to `out`; return their losses."""
        n, work = self.flat.n_parameters, self.work
        first = self.gradients(weights, *self._batch(drawn, 0, augments), out=out)
        if work.work == "gradient":
            torch.sub(weights[n:], out[:, n:], out=out[:, n:])
            return first.losses
        steps = np.array([len(examples) for examples in drawn])
        velocity, losses = out[:, :n].clone(), first.losses
        here = torch.cat([torch.add(weights[:n], velocity, alpha=-work.step_size), out[:, n:]], dim=1)
        for step in range(1, steps[0]):
            m = int((steps > step).sum())
            got = self.gradients(here[:m], *self._batch(drawn, step, augments), out=out[:m])
            torch.add(got.rows[:, :n], velocity[:m], alpha=work.momentum, out=velocity[:m])
            here[:m, :n].sub_(velocity[:m], alpha=work.step_size)
            here[:m, n:] = got.rows[:, n:]
            losses[:m] += got.losses
        torch.sub(weights, here, out=out)
        return losses / torch.from_numpy(steps).to(losses)

    def _batch(self, drawn: list[Array], step: int, augments: list[torch.Generator]) -> tuple[Tensor, Tensor]:
        """Return the images and labels of this step, of the clients that take it."""
        indices = np.stack([examples[step] for examples in drawn if len(examples) > step])
        where = torch.from_numpy(indices).to(self.images.labels.device)
        if not augments:
            return self.images.batch(where), self.images.labels[where]
        rows = [self.images.batch(row, augment=rng) for row, rng in zip(where, augments, strict=False)]
        return torch.stack(rows), self.images.labels[where]

    def _augment(self, round: int, client: int) -> torch.Generator:
        return reproducible.torch_generator(self.images.labels.device, self.seed, "augment", round, client)


def _pass_for(model: nn.Module, device: torch.device, work: ClientsSettings) -> Pass:
    """Return the fastest pass for this model and work (docs/reference/models.md)."""
    if not work.compiled and work.precision == "float32":
        return Grouped(model) if Grouped.fits(model) else Vmapped(model)
    if device.type != "cuda":
        raise ValueError(
            f"clients.compiled and clients.precision = 'bfloat16' are for a GPU; these clients are on {device}."
        )
    return Loop(model, compiled=work.compiled, precision=getattr(torch, work.precision))


def clients_at_once(model: nn.Module, batch: int, image: tuple[int, ...], device: torch.device) -> int:
    """Return the number of clients whose pass fits into the cache, or into a third of a GPU's memory.

    The free memory of the GPU does not matter, as the number must be the same when a run is resumed.
    """
    most = torch.cuda.get_device_properties(device).total_memory // 3 if device.type == "cuda" else CACHE_BYTES
    return max(1, most // _bytes_of_pass(model, batch, image))


def _bytes_of_pass(model: nn.Module, batch: int, image: tuple[int, ...]) -> int:
    """Return the peak memory of one client's pass: tensors kept for the backward pass, and patches of one layer."""
    kept, patches = 0, 0

    def keep(tensor: Tensor) -> Tensor:
        nonlocal kept
        whole = tensor if tensor._base is None else tensor._base
        if not (whole.is_leaf and whole.requires_grad):  # weights are not of the pass
            kept += tensor.numel() * tensor.element_size()
        return tensor

    def count_patches(module: nn.Module, given: tuple[Tensor, ...], out: Tensor) -> None:
        nonlocal patches
        if isinstance(module, nn.Conv2d) and module.groups == 1:
            seen = out[:, 0].numel() * module.weight[0].numel()
            patches = max(patches, seen * out.element_size())

    hooks = [module.register_forward_hook(count_patches) for module in model.modules()]
    tensors = {n: torch.empty_like(p, device="meta", requires_grad=True) for n, p in model.named_parameters()}
    tensors |= {n: torch.empty_like(b, device="meta") for n, b in model.named_buffers()}
    try:
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            text = len(image) == 1
            given = torch.empty(batch, *image, device="meta", dtype=torch.long if text else torch.float32)
            out = torch.func.functional_call(model, tensors, given)
            functional.cross_entropy(out, torch.zeros(batch, *image[:text], dtype=torch.long, device="meta"))
    finally:
        for hook in hooks:
            hook.remove()
    return kept + 2 * patches
