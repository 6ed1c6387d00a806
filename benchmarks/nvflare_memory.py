"""Memory of an NVFlare server while sites send large models and its tensors are on disk.

Run:  python benchmarks/nvflare_memory.py [--rule fedavg]
NVFlare's simulator with its own transport and PyTorch recipe; the sites do not train, each adds its number to every
weight. "Idle" is the server with its model loaded, before it asks the sites. Peaks are those of its resident set, pages
of mapped files included, as the kernel counts them (VmHWM): while results are accepted and aggregated, and apart from
that, while NVFlare sends and receives. glibc is told to return large blocks at once, or freed ones would count.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

import torch
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.app_common.app_event_type import AppEventType

from bartizan._util import machine
from bartizan.nvflare import RobustAggregator
from bartizan.studies.bench.peak_memory import of_process

SIDE = 2000


class Layers(torch.nn.Module):
    """`n` square layers of 16 MB."""

    def __init__(self, n: int = 64) -> None:
        super().__init__()
        self.n = n
        self.layers = torch.nn.ParameterList([torch.zeros(SIDE, SIDE) for _ in range(n)])


STAGES = {
    AppEventType.BEFORE_CONTRIBUTION_ACCEPT: "transport",
    AppEventType.AFTER_CONTRIBUTION_ACCEPT: "accept",
    AppEventType.BEFORE_AGGREGATION: "transport",
    AppEventType.AFTER_AGGREGATION: "aggregate",
}


class MemoryNotes(FLComponent):
    """Records the server's peaks between events, and writes them into the job's results."""

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        if event_type == AppEventType.ROUND_STARTED:
            # The simulator of 2.9.0 sets this on a cell that receives no results; a server in production has only one.
            server = fl_ctx.get_engine().server
            context = server.cell.get_fobs_context()
            names = ("enable_tensor_disk_offload", "tensor_disk_offload_root_dir")
            server.job_cell.update_fobs_context({name: context.get(name) for name in names})
            self.notes = {"idle": of_process("VmRSS:"), "transport": [], "accept": [], "aggregate": [], "kinds": []}
        elif event_type in STAGES:
            self.notes[STAGES[event_type]].append(of_process("VmHWM:"))
            if event_type == AppEventType.BEFORE_CONTRIBUTION_ACCEPT:
                data = fl_ctx.get_prop(FLContextKey.TASK_RESULT)["DXO"]["data"]
                self.notes["kinds"].append(type(next(iter(data.values()))).__name__)
            if event_type == AppEventType.AFTER_AGGREGATION:
                engine = fl_ctx.get_engine()
                folder = Path(engine.get_workspace().get_result_root(fl_ctx.get_job_id()))
                (folder / "memory.json").write_text(json.dumps(self.notes))
        else:
            return
        Path("/proc/self/clear_refs").write_text("5")  # begins the peak anew


def site() -> None:
    import nvflare.client as flare

    flare.init()
    number = int(flare.get_site_name().removeprefix("site-"))
    while flare.is_running():
        model = flare.receive()
        for tensor in model.params.values():
            tensor += number if number > 1 else -1e3
        flare.send(flare.FLModel(params=model.params))


def main() -> None:
    if "--site" in sys.argv:
        return site()
    from nvflare.app_opt.pt.recipes import FedAvgRecipe
    from nvflare.client.config import ExchangeFormat
    from nvflare.recipe import SimEnv

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sites", type=int, default=8)
    parser.add_argument("--layers", type=int, default=64, help="of 16 MB each")
    parser.add_argument("--rule", default="multi-krum", help="or fedavg, for NVFlare's own mean")
    parser.add_argument("--n-byzantine", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1, help="sites that run at a time")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    os.environ |= {"MALLOC_ARENA_MAX": "4", "MALLOC_MMAP_THRESHOLD_": str(2**20), "MALLOC_TRIM_THRESHOLD_": str(2**20)}
    aggregator = None if options.rule == "fedavg" else RobustAggregator(options.rule, options.n_byzantine)
    with tempfile.TemporaryDirectory() as workspace:
        recipe = FedAvgRecipe(
            name="memory",
            model=Layers(options.layers),
            min_clients=options.sites,
            num_rounds=1,
            train_script=__file__,
            train_args="--site",
            server_expected_format=ExchangeFormat.PYTORCH,
            enable_tensor_disk_offload=True,
            aggregator=aggregator,
        )
        recipe._job.to_server(MemoryNotes(), id="memory_notes")
        recipe.run(SimEnv(num_clients=options.sites, num_threads=options.threads, workspace_root=workspace))
        (notes,) = Path(workspace).rglob("memory.json")
        found = json.loads(notes.read_text())
    over = {stage: [n - found["idle"] for n in found[stage]] for stage in ("transport", "accept", "aggregate")}
    about = {"rule": options.rule, "sites": options.sites, "model": 4 * SIDE**2 * options.layers, "over idle": over}
    line = about | {"idle": found["idle"], "kinds": found["kinds"], "machine": machine.name_of("cpu")}
    if options.out:
        options.out.write_text(json.dumps(line, indent=1) + "\n")
    peaks = ", ".join(f"{stage} {max(values) / 1e6:,.0f} MB" for stage, values in over.items())
    print(f"{options.rule}, {options.sites} sites of {line['model'] / 1e6:,.0f} MB, peaks over idle: {peaks}")


if __name__ == "__main__":
    main()
