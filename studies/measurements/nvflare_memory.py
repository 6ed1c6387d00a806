"""The memory of an NVFlare server while sites send large models and its tensors are on disk."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Annotated

import torch
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.app_common.app_event_type import AppEventType

from bartizan._util import machine
from bartizan.nvflare import RobustAggregator
from studies.options import command
from studies.rows import write_json
from studies.speed.peak_memory import of_process

SIDE = 2000
ROOT = Path(__file__).parents[2]


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


def nvflare_memory(
    *,
    sites: int = 8,
    layers: Annotated[int, "of 16 MB each"] = 64,
    rule: Annotated[str, "or fedavg, for NVFlare's own mean"] = "multi-krum",
    n_byzantine: int = 2,
    threads: Annotated[int, "sites that run at a time"] = 1,
    out: Path | None = None,
) -> None:
    """Run NVFlare's simulator with its own transport and PyTorch recipe; sites add their number to every weight.

    "Idle" is the server with its model loaded, before it asks the sites. Peaks are those of its resident set, pages of
    mapped files included, as the kernel counts them (VmHWM): while results are accepted and aggregated, and apart from
    that, while NVFlare sends and receives. glibc is told to return large blocks at once, or freed ones would count.
    """
    from nvflare.app_opt.pt.recipes import FedAvgRecipe
    from nvflare.client.config import ExchangeFormat
    from nvflare.recipe import SimEnv

    os.environ |= {"MALLOC_ARENA_MAX": "4", "MALLOC_MMAP_THRESHOLD_": str(2**20), "MALLOC_TRIM_THRESHOLD_": str(2**20)}
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])  # of the sites
    aggregator = None if rule == "fedavg" else RobustAggregator(rule, n_byzantine)
    with tempfile.TemporaryDirectory() as workspace:
        recipe = FedAvgRecipe(
            name="memory",
            model=Layers(layers),
            min_clients=sites,
            num_rounds=1,
            train_script=__file__,
            server_expected_format=ExchangeFormat.PYTORCH,
            enable_tensor_disk_offload=True,
            aggregator=aggregator,
        )
        recipe._job.to_server(MemoryNotes(), id="memory_notes")
        recipe.run(SimEnv(num_clients=sites, num_threads=threads, workspace_root=workspace))
        (notes,) = Path(workspace).rglob("memory.json")
        found = json.loads(notes.read_text())
    over = {stage: [n - found["idle"] for n in found[stage]] for stage in ("transport", "accept", "aggregate")}
    about = {"rule": rule, "sites": sites, "model": 4 * SIDE**2 * layers, "over idle": over}
    line = about | {"idle": found["idle"], "kinds": found["kinds"], "machine": machine.name_of("cpu")}
    write_json(out, line)
    peaks = ", ".join(f"{stage} {max(values) / 1e6:,.0f} MB" for stage, values in over.items())
    print(f"{rule}, {sites} sites of {line['model'] / 1e6:,.0f} MB, peaks over idle: {peaks}")


add_to = command(nvflare_memory)


if __name__ == "__main__":  # NVFlare runs this file as its sites
    site()
