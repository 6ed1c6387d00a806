"""The runner of all studies: `python -m studies COMMAND`, from the root of a checkout."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from bartizan import cli

ABOUT = "What this project says about itself, and how it was measured. Each page names the command of its figures."
COMMANDS = {
    "paper": ("studies.paper.command", "run the paper's experiments and compare"),
    "theory": ("studies.theory.parts", "measure what the theorems promise"),
    "speed": ("studies.speed.command", "measure what aggregation costs beside other libraries"),
    "guide": ("studies.guide.command", "the runs behind the tables of rules"),
    "pages": ("studies.pages.results_page", "write the tables and figures of the pages, or check them"),
    "keep-training": ("studies.pages.training_figure", "keep the runs behind the README's picture"),
    **{
        name: (f"studies.measurements.{name.replace('-', '_')}", about)
        for name, about in {
            "adapters": "errors of distances between adapters",
            "adaptive": "attackers who know the projection: harm, checks, their cost",
            "buffered": "a buffer with a memory beside rounds of few or slow clients",
            "committed-bytes": "bytes of a committed round on sockets",
            "crossover": "from how many clients projecting is faster",
            "example-attacks": "accuracy of the two platforms' examples under attack",
            "few-sites": "accuracy with seven sites, one of which is large",
            "flower-accuracy": "what robustness costs a training with Flower when nobody attacks",
            "flower-server": "choice of client, time and memory beside Flower's strategies",
            "many-clients": "time and memory of whole calls on up to a hundred thousand clients",
            "nvflare-memory": "memory of an NVFlare server",
            "partitioned": "a partitioned call beside a flat one",
            "scaling": "sketches alone at ten thousand clients, and a model of larger rounds",
            "tails": "how far each sketch distorts whole spans",
            "traffic": "bytes that the ranks of a sharded call exchange",
        }.items()
    },
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a study; a mistake of the user is one line on stderr and exit status 2."""
    return cli.main(arguments, "python -m studies", ABOUT, COMMANDS)


if __name__ == "__main__":
    sys.exit(main())
