"""Nine sites learn to tell garments apart in NVFlare's simulator; three of them attack."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch
from nvflare.app_opt.pt.recipes import FedAvgRecipe
from nvflare.client.config import ExchangeFormat
from nvflare.recipe import SimEnv

from bartizan.nvflare import RobustAggregator, load_reputation
from garments import Network, accuracy, examples

HERE = Path(__file__).resolve().parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rule", default="multi-krum", help="a rule of bartizan, or fedavg for NVFlare's own mean")
    parser.add_argument("--n-byzantine", type=int, default=3, help="how many sites may attack, as the server guesses")
    parser.add_argument("--hostile", type=int, default=3, help="how many do")
    parser.add_argument("--momentum", type=float, default=0.0, help="of the sites' updates, over the rounds")
    parser.add_argument("--sites", type=int, default=9)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workspace", type=Path, default=Path(tempfile.gettempdir(), "bartizan-nvflare"))
    options = parser.parse_args()

    n_byzantine = None if options.rule == "mean" else options.n_byzantine
    aggregator = None if options.rule == "fedavg" else RobustAggregator(options.rule, n_byzantine)
    torch.manual_seed(0)
    recipe = FedAvgRecipe(
        name="garments",
        model=Network(),
        min_clients=options.sites,
        num_rounds=options.rounds,
        train_script=str(HERE / "client.py"),
        train_args=f"--hostile {options.hostile} --momentum {options.momentum}",
        server_expected_format=ExchangeFormat.PYTORCH,
        aggregator=aggregator,
    )
    run = recipe.run(SimEnv(num_clients=options.sites, workspace_root=str(options.workspace)))
    result = Path(run.get_result())
    model = Network()
    saved = next(result.rglob("FL_global_model.pt"))
    model.load_state_dict(torch.load(saved, weights_only=False)["model"])
    print(f"Accuracy: {accuracy(model, examples()):.3f}")
    if aggregator is not None:
        for suspect in load_reputation(result).suspects():
            print(suspect)


if __name__ == "__main__":
    main()
