"""Adapters: how far sketched distances are off, and what exact and projected distances cost.

`python benchmarks/lora.py tails` compares relative errors of squared distances with those of `Rotated`, by seeds.
`python benchmarks/lora.py speed --device cuda` times 50 adapters of a 70B model (rank 16, 207M numbers, bfloat16); a
read is the time that the device needs to read all factors once. `--layers 2` is for smaller machines.
`python benchmarks/lora.py operations` counts what Python asks of torch for such a call, on tensors without memory.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

import bartizan as bz
from bartizan.lora import LoRA, TwoSided, factor_stacks, two_sided
from bartizan.lora.adapters import Adapter, form_of, parse_adapter
from bartizan.updates.layout import Entry, Layout, is_tensor

QUANTILES = (0.5, 0.9, 0.99, 0.999, 1.0)
# (d_out, d_in) of the modules of a layer of a 70B model with grouped queries
LAYER = {
    "q_proj": (8192, 8192),
    "k_proj": (1024, 8192),
    "v_proj": (1024, 8192),
    "o_proj": (8192, 8192),
    "gate_proj": (28672, 8192),
    "up_proj": (28672, 8192),
    "down_proj": (8192, 28672),
}


def made(rng, modules, rank):
    return {
        f"{name}.lora_{side}.weight": rng.normal(size=(rank, d_in) if side == "A" else (d_out, rank)).astype(np.float32)
        for name, (d_out, d_in) in modules.items()
        for side in "AB"
    }


def dense(update):
    names = sorted(name for name in update if "lora_A" in name)
    return np.concatenate([(update[n.replace("lora_A", "lora_B")] @ update[n]).ravel() / len(update[n]) for n in names])


def on_few_coordinates(rng, modules, rank):
    """Each factor is two coordinates: what a blind attacker would aim at."""
    update = {name: np.zeros_like(array) for name, array in made(rng, modules, rank).items()}
    for name, array in update.items():
        flat = array if "lora_A" in name else array.T
        for row in flat:
            row[rng.choice(len(row), 2, replace=False)] = 1
    return update


def tails(seeds):
    """Relative errors |estimate / truth - 1| of one squared distance, by seeds, at k = 4096."""
    one, many = {"m": (2048, 1536)}, {f"m{i:02}": (256, 384) for i in range(32)}
    rng = np.random.default_rng(0)
    cases = {
        "rank 1 in one module": made(rng, one, 1),
        "rank 16 in one module": made(rng, one, 16),
        "rank 1 in each of 32": made(rng, many, 1),
        "rank 16 in each of 32": made(rng, many, 16),
        "rank 1, two coordinates, one module": on_few_coordinates(rng, one, 1),
    }
    sketches = [TwoSided(rows=64), TwoSided(rows=128), TwoSided(), TwoSided(rows=512), bz.Rotated()]
    print(f"| difference | sketch | {' | '.join(f'{q:.1%}' for q in QUANTILES)} | stated deviation |")
    print(f"|---|---|{'--:|' * (len(QUANTILES) + 1)}")
    for case, update in cases.items():
        row = dense(update)[None]
        truth, n_modules = float((row.astype(np.float64) ** 2).sum()), len(update) // 2
        rank = len(next(array for name, array in update.items() if "lora_A" in name))
        for sketch in sketches:
            if isinstance(sketch, TwoSided):
                found = [(sketch([update], seed=seed, settings=LoRA(alpha=1)) ** 2).sum() for seed in range(seeds)]
                parts = n_modules * rank
                stated = (4 / (parts * sketch.rows) + (2 + 2 / parts) / sketch.k) ** 0.5
            else:
                found = [(sketch(row, seed=seed) ** 2).sum() for seed in range(seeds)]
                stated = (2 / sketch.k) ** 0.5
            errors = np.abs(np.array(found) / truth - 1)
            cells = " | ".join(f"{np.quantile(errors, q):.3f}" for q in QUANTILES)
            print(f"| {case} | `{sketch!r}` | {cells} | {stated:.3f} |", flush=True)


def speed(device, n_clients, layers, rank, repeats):
    import torch

    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    modules = {f"layers.{i:02}.{name}": shape for i in range(layers) for name, shape in LAYER.items()}
    torch.manual_seed(0)
    sent = [
        {
            f"{name}.lora_{side}.weight": torch.randn((rank, d_in) if side == "A" else (d_out, rank), device=device)
            .mul_(d_in**-0.5)
            .to(dtype)
            for name, (d_out, d_in) in modules.items()
            for side in "AB"
        }
        for _ in range(n_clients)
    ]
    numbers = sum(tensor.numel() for tensor in sent[0].values())
    print(
        f"{n_clients} adapters of {numbers / 1e6:.1f}M numbers, rank {rank}, {dtype}, {torch.__version__} on {device}"
    )

    def timed(call):
        times = []
        for _ in range(repeats):
            begin = time.perf_counter()
            result = call()
            if device == "cuda":
                torch.cuda.synchronize()
            times.append(time.perf_counter() - begin)
        return min(times), result

    size = n_clients * numbers * dtype.itemsize
    flat = torch.empty(min(size, 2**33) // 4, dtype=torch.float32, device=device).fill_(1.0)
    read = timed(flat.sum)[0] * size / (flat.numel() * 4)
    del flat
    print(f"one read of all factors: {1e3 * read:.2f} ms, {size / read / 1e9:.0f} GB/s")
    forms = {}
    adapters = [parse_adapter(update, LoRA(alpha=rank), forms) for update in sent]
    seconds, exact = timed(lambda: factor_stacks.exact(adapters))
    flops = 2 * n_clients * rank * n_clients * numbers
    print(f"exact: {1e3 * seconds:.1f} ms, {seconds / read:.1f} reads, {flops / seconds / 1e12:.1f} TFLOP/s")
    distances = squared_distances(exact.gram)
    for rows in (64, 128, 256):
        sketch = TwoSided(rows=rows)
        seconds, found = timed(lambda sketch=sketch: sketch.measure(adapters, (), None, 1))
        off = np.abs(squared_distances(found.gram) / distances - 1).max()
        print(
            f"{sketch!r}: {1e3 * seconds:.1f} ms, {seconds / read:.1f} reads; largest error of a distance^2 {off:.3f}"
        )
    layer = [{name: tensor for name, tensor in one.items() if "layers.00" in name} for one in sent[:3]]
    wide = [{name: tensor.double() for name, tensor in one.items()} for one in layer]
    grams = [factor_stacks.exact([parse_adapter(u, LoRA(alpha=rank)) for u in some]).gram for some in (layer, wide)]
    print(
        f"exact against float64, one layer: {np.abs(grams[0] / grams[1] - 1).max():.1e} relative, off-diagonal included"
    )


def operations(n_clients, layers, rank):
    """Torch operations of one call, as on a GPU (which needs two copies a product less); views start nothing there."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    class Counted(TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.all = self.views = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.all, self.views = self.all + 1, self.views + func.is_view
            return func(*args, **(kwargs or {}))

    factor_stacks.on_gpu = is_tensor
    factor_stacks.on_host = two_sided.on_host = lambda tensor: np.ones(tuple(tensor.shape))
    entries = [
        Entry((f"layers.{i:02}.{name}.lora_{side}.weight",), shape, "bfloat16", "cuda:0")
        for i in range(layers)
        for name, (d_out, d_in) in LAYER.items()
        for side, shape in (("A", (rank, d_in)), ("B", (d_out, rank)))
    ]
    form = form_of(Layout(tuple(entries)), LoRA(alpha=rank))
    new = {"dtype": torch.bfloat16, "device": "meta"}
    adapters = [
        Adapter(
            form,
            tuple(torch.empty(d_out, rank, **new) for _, d_out, _ in form.shapes),
            tuple(torch.empty(rank, d_in, **new) for _, _, d_in in form.shapes),
        )
        for _ in range(n_clients)
    ]
    print(f"{n_clients} adapters of {len(form.shapes)} modules, rank {rank}, {torch.__version__}")
    for about in (None, adapters[0]):
        calls = {
            "exact": lambda about=about: factor_stacks.exact(adapters, (), about),
            "TwoSided()": lambda about=about: TwoSided().measure(adapters, (), about, 1),
        }
        for name, call in calls.items():
            with Counted() as counted:
                call()
            from_one = "" if about is None else ", distances from a reference"
            print(f"{name}{from_one}: {counted.all} operations, {counted.views} of them views")


def squared_distances(gram):
    D = np.diag(gram)[:, None] + np.diag(gram) - 2 * gram
    return D[np.triu_indices(len(D), 1)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["tails", "speed", "operations"])
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--layers", type=int, default=80)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    if given.what == "tails":
        tails(given.seeds)
    elif given.what == "operations":
        operations(given.clients, given.layers, given.rank)
    else:
        speed(given.device, given.clients, given.layers, given.rank, given.repeats)


if __name__ == "__main__":
    main()
