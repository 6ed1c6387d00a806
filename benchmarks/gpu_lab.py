"""Every GPU kernel, checked against float64 and timed in several variants: `python benchmarks/gpu_lab.py`.

The unit is one read: the time that torch takes to sum the same numbers. Variants are compiled first, side by side.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import subprocess
import sys
import time

import numpy as np
import torch

from bartizan._util.seeds import key_of
from bartizan.kernels import gpu, reference
from bartizan.kernels.gpu import combine, pairs
from bartizan.kernels.gpu import rotation as gpu_rotation
from bartizan.kernels.gpu import squared_norms as norms

KEY = key_of(2**190 + 99)
RESNET = 11_173_962  # rows are 8-byte aligned
WHOLE = 2728 * 4096  # as many, aligned
VGG = 138_357_544
LAYERS = [9408, 64, 64, *[36864, 64, 64] * 4, 73728, 128, 128, *[147456, 128, 128] * 3, 8192, 128, 128]
LAYERS += [294912, 256, 256, *[589824, 256, 256] * 3, 32768, 256, 256, 1179648, 512, 512, *[2359296, 512, 512] * 3]
LAYERS += [131072, 512, 512, 512000, 1000]
SETTINGS = {"combine": combine, "norms": norms, "pairs": pairs, "rotation": gpu_rotation}


@dataclasses.dataclass(frozen=True)
class Variant:
    name: str
    kernel: str
    k: int = 4096
    align: int = 0
    origin: bool = False
    settings: tuple[tuple[str, str, int], ...] = ()
    options: tuple[tuple[str, object], ...] = ()


def with_(*settings):
    return tuple((module, name, value) for module, name, value in settings)


def rotation(**settings):
    return with_(*(("rotation", name, value) for name, value in settings.items()))


SKETCHES = [
    Variant("rotated", "rotated"),
    Variant("rotated, nothing early", "rotated", settings=rotation(EARLY=0)),
    Variant("rotated, 8-byte rows", "rotated", align=8),
    Variant("rotated, 8-byte rows, 8 warps", "rotated", align=8, settings=rotation(NARROW_WARPS=8, NARROW_REGISTERS=0)),
    Variant("rotated about an origin", "rotated", origin=True),
    Variant("rotated about an origin, 4 rows together", "rotated", origin=True, settings=rotation(TOGETHER=4)),
    *(Variant(f"rotated k={k}", "rotated", k=k) for k in (1024, 2048, 8192, 16384)),
]
SUMS = [
    Variant("squared norms", "squared_norms"),
    Variant("squared norms about an origin", "squared_norms", origin=True),
    Variant("weighted sum", "weighted_sum"),
    Variant("weighted sum, 2048 columns", "weighted_sum", settings=with_(("combine", "COLUMNS", 2048))),
    Variant("weighted sum of one row", "one_row"),
]
GRAMS = [Variant("gram", "gram"), Variant("gram tf32", "gram", options=(("tf32", True),))]
ALL = [*SKETCHES, *SUMS, *GRAMS]


def call(variant, x, origin, rows=None):
    """A function of nothing that runs the variant, and its results."""
    for module, name, value in variant.settings:
        setattr(SETTINGS[module], name, value)
    M, p = (len(x), x.shape[1]) if x is not None else (len(rows), rows.width)
    if rows is None:
        rows = gpu.DeviceRows.of(x, tile=max(4096, variant.k))
    if variant.align:
        rows = dataclasses.replace(rows, align=variant.align)
    origin = origin if variant.origin else None
    new = lambda *shape: torch.zeros(shape, dtype=torch.float64, device="cuda")  # noqa: E731
    if variant.kernel == "rotated":
        out, squares = new(M, variant.k), new(M)
        return lambda: gpu.rotated(rows, origin, 0, KEY, 32, out, squares), (out, squares)
    if variant.kernel in ("weighted_sum", "one_row"):
        weights = np.random.default_rng(0).random(M) / M
        if variant.kernel == "one_row":
            weights[1:] = 0
        out = torch.full((p,), torch.nan, device="cuda")
        return lambda: gpu.weighted_sum(rows, weights, 0.0, None, out), (out, weights)
    if variant.kernel == "gram":
        out = new(M, M)
        return lambda: gpu.gram(rows, origin, out, **dict(variant.options)), (out,)
    out = new(M)
    return lambda: getattr(gpu, variant.kernel)(rows, origin, out), (out,)


def restore(saved):
    for module, names in saved.items():
        for name, value in names.items():
            setattr(SETTINGS[module], name, value)


SAVED = {
    key: {name: value for name, value in vars(module).items() if name.isupper() and isinstance(value, (bool, int))}
    for key, module in SETTINGS.items()
}


def error(variant, x, origin):
    """The relative error of a run on few rows, against float64."""
    fn, (out, *more) = call(variant, x, origin)
    fn()
    torch.cuda.synchronize()
    about = x.double() - (origin if variant.origin else 0)
    if variant.kernel == "rotated":
        truth, squares = np.zeros((1, variant.k)), np.zeros(1)
        reference.rotated(about[-1:].cpu().numpy(), None, 0, KEY, 32, truth, squares)
        norm = abs(float(more[0][-1]) / squares[0] - 1)
        return max(norm, float(np.linalg.norm(out[-1].cpu().numpy() - truth[0]) / np.linalg.norm(truth)))
    if variant.kernel in ("weighted_sum", "one_row"):
        truth = more[0] @ x.double()
    elif variant.kernel == "gram":
        truth = about @ about.T
    else:
        truth = about.square().sum(1)
    return float(torch.linalg.norm(out.double() - truth) / torch.linalg.norm(truth))


def timed(fn, repeats=12):
    """Milliseconds: the median and the least of several runs."""
    for _ in range(3):
        fn()
    times = []
    for _ in range(repeats):
        a, b = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        a.record()
        fn()
        b.record()
        b.synchronize()
        times.append(a.elapsed_time(b))
    return float(np.median(times)), min(times)


def show(name, ms, read, note=""):
    print(f"{name:<52}{ms[0]:9.3f} ms {ms[0] / read:6.3f} reads (least {ms[1] / read:6.3f}) {note}", flush=True)


def warm(share, of):
    """Compile one share of the variants, on small data, into Triton's cache."""
    for variant in ALL[share::of]:
        x = torch.randn((50, 3 * 16384 + 1236), device="cuda")
        origin = torch.randn(x.shape[1], device="cuda")
        call(variant, x, origin)[0]()
        restore(SAVED)
    torch.cuda.synchronize()


def compile_all(of=12):
    begin = time.perf_counter()
    command = [sys.executable, __file__, "--warm"]
    running = [subprocess.Popen([*command, str(i), str(of)], env=os.environ) for i in range(of)]
    failed = [i for i, process in enumerate(running) if process.wait()]
    print(f"compiled in {time.perf_counter() - begin:.0f} s on {of} processes; failed shares: {failed}", flush=True)


def check(variants):
    x = torch.randn((50, 16 * 16384 + 1236), device="cuda")
    origin = torch.randn(x.shape[1], device="cuda")
    good = []
    for variant in variants:
        try:
            wrong = error(variant, x, origin)
            most = 2e-3 if ("tf32", True) in variant.options else 2e-6
            print(f"{'ok   ' if wrong < most else 'WRONG'} {wrong:.1e} {variant.name}", flush=True)
            if wrong < most:
                good.append(variant)
        except Exception as failure:
            print(f"FAILED {variant.name}: {str(failure)[-600:]}", flush=True)
        restore(SAVED)
    return good


def bench(title, x, variants, baselines=()):
    read = timed(lambda: x.sum())[0]
    origin = torch.randn(x.shape[1], device="cuda")
    print(f"\n{title}: one read {read:.3f} ms, {x.numel() * x.element_size() / read / 1e9:.2f} TB/s", flush=True)
    for variant in variants:
        fn, _ = call(variant, x, origin)
        show(variant.name, timed(fn), read)
        restore(SAVED)
    for name, fn in baselines:
        show(name, timed(fn, 5), read)
    return read


def bench_layers(read):
    clients = [[torch.randn(size, device="cuda") for size in LAYERS] for _ in range(50)]
    out, squares = (torch.zeros(s, dtype=torch.float64, device="cuda") for s in ((50, 4096), 50))

    def sketch():
        for start, rows in gpu.Placed.of(clients):
            gpu.rotated(rows, None, start, KEY, 32, out, squares)

    show(f"rotated, {len(LAYERS)} layers a client, table included", timed(sketch), read)
    torch.cuda.synchronize()
    begin = time.perf_counter()
    placed = gpu.Placed.of(clients)
    spent = time.perf_counter() - begin
    print(f"  Placed.of: {spent * 1e3:.2f} ms of Python, {len(placed.ranges)} ranges", flush=True)

    def again():
        for start, rows in placed:
            gpu.rotated(rows, None, start, KEY, 32, out, squares)

    show("  the same, walked over again", timed(again), read)


def bench_calls():
    """What a call costs the host: everything but the device's own time."""
    x = torch.randn((50, 8192), device="cuda")
    for variant in (SKETCHES[0], SUMS[0], SUMS[2], GRAMS[0]):
        fn, _ = call(variant, x, None)
        restore(SAVED)
        fn()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(200):
            fn()
        host = (time.perf_counter() - begin) / 200
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(200):
            fn()
            torch.cuda.synchronize()
        whole = (time.perf_counter() - begin) / 200
        print(
            f"  a call on little data: {host * 1e6:6.1f} us of the host, {whole * 1e6:6.1f} us in all: {variant.kernel}"
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--warm", nargs=2, type=int)
    arguments = parser.parse_args()
    if arguments.warm:
        return warm(*arguments.warm)
    print(torch.cuda.get_device_name(), torch.__version__, flush=True)
    compile_all()
    good = check(ALL)
    sketches, sums, grams = ([v for v in group if v in good] for group in (SKETCHES, SUMS, GRAMS))
    plain = [v for v in sketches if v.k == 4096 and not v.align and not v.origin]
    about = [v for v in sketches if v.origin]
    x = torch.randn((50, WHOLE), device="cuda")
    w = torch.rand(50, device="cuda")
    read = bench("M=50, p=11.17M, 16-byte rows", x, [*sketches, *sums, *grams], [("cuBLAS gemv", lambda: w @ x)])
    bench("the same in bfloat16", x.bfloat16(), [*plain[:1], *sums[:1], *sums[2:3], *grams[:1]])
    bench_layers(read)
    bench_calls()
    x = torch.randn((50, RESNET), device="cuda")
    bench(
        "M=50, p=11,173,962, 8-byte rows",
        x,
        [*plain[:2], *[v for v in sketches if v.align], *about[:1], *sums[:4], *grams[:1]],
    )
    del x
    x = torch.randn((1000, WHOLE), device="cuda")
    bench("M=1000, p=11.17M", x, [*plain, *about[:1], *sums[2:3], *grams[:1]])
    del x
    x = torch.empty((50, VGG), device="cuda")
    for row in x:
        row.normal_()
    bench("M=50, p=138M", x, [*plain, *about, *sums[:1], *sums[2:3], *grams[:1]])
    print("the most memory:", torch.cuda.max_memory_allocated() // 2**20, "MiB")
    return None


if __name__ == "__main__":
    main()
