"""The README's picture: the accuracy of the mean and of the default rule under attack, and the default's weights.

bartizan sweep studies/pages/training.toml
python -m studies keep-training runs/training --out studies/results/training.jsonl
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np

from bartizan import records
from bartizan.registry import DEFAULT_RULE
from studies.options import add_command
from studies.plotting import COLOURS, DARK, GREY, LIGHT, RED, new_figure
from studies.rows import keep, kept

ATTACK = "sign-flip"


def add_to(commands: Any) -> None:
    add_command(commands, keep_training)


def keep_training(
    runs: Annotated[Path, "the folder that the sweep wrote"], *, out: Annotated[Path, "the file of the kept rows"]
) -> None:
    """Keep the accuracies of each run and, of the default rule under attack, its weights by round and client."""
    keep(out, [row_of(records.read(folder)) for folder in records.find(runs)])


def row_of(found: records.Recorded) -> dict[str, Any]:
    """Return the row of one run."""
    config = found.run["config"]
    row = {key: config[key]["name"] for key in ("rule", "attack")}
    row |= {"seed": config["seed"], "byzantine": found.run["byzantine"]}
    row["accuracy"] = [[line["round"], line["accuracy"]] for line in found.rounds if "accuracy" in line]
    if (row["rule"], row["attack"]) == (DEFAULT_RULE, ATTACK):
        row["weights"] = [[round(weight, 4) for weight in line["weights"]] for line in found.rounds]
    return row


def draw() -> Any:
    """Return the figure of the kept rows."""
    runs = {(row["rule"], row["attack"]): row for row in kept("training")}
    ours = runs[DEFAULT_RULE, ATTACK]
    figure, panels = new_figure(2, 1, (8, 5.2), height_ratios=[1.15, 1])
    _accuracies(panels[0][0], runs)
    _weights(figure, panels[1][0], np.array(ours["weights"]).T, ours["byzantine"])
    return figure


def _accuracies(panel: Any, runs: dict[tuple[str, str], dict[str, Any]]) -> None:
    ours = runs[DEFAULT_RULE, ATTACK]
    n_attackers, clients = len(ours["byzantine"]), ours["weights"][0]
    lines = [
        (("mean", "none"), "plain mean, no attack", GREY, {"linestyle": (0, (4, 2.5)), "linewidth": 1.4}),
        ((DEFAULT_RULE, ATTACK), f"bartizan's default, {n_attackers} attackers", COLOURS[0], {"linewidth": 2.6}),
        (("mean", ATTACK), f"plain mean, {n_attackers} attackers", RED, {"linewidth": 2.6}),
    ]
    for key, label, colour, style in lines:
        rounds, accuracy = zip(*runs[key]["accuracy"], strict=True)
        panel.plot(rounds, [100 * one for one in accuracy], color=colour, label=label, **style)
        panel.annotate(
            f"{100 * accuracy[-1]:.0f}%",
            (rounds[-1], 100 * accuracy[-1]),
            (6, 5 if key == ("mean", "none") else -5),
            textcoords="offset points",
            color=colour,
            fontsize=10,
            fontweight="bold",
            va="center",
        )
    last = ours["accuracy"][-1][0]
    panel.set(xlim=(0.5, last + 2.5), ylim=(0, 90))
    panel.grid(axis="y", color=LIGHT, linewidth=0.6)
    panel.set_ylabel("accuracy, %", color=GREY, fontsize=10)
    panel.set_title(
        f"{len(clients)} clients train a network; {n_attackers} attack by {ATTACK}", color=DARK, fontsize=13, loc="left"
    )
    panel.legend(loc="center right", bbox_to_anchor=(0.97, 0.47), frameon=False, fontsize=10, labelcolor=DARK)


def _weights(figure: Any, panel: Any, weights: Any, byzantine: list[int]) -> None:
    from matplotlib.colors import LinearSegmentedColormap

    honest = [client for client in range(len(weights)) if client not in byzantine]
    n_attackers, n_rounds = len(byzantine), weights.shape[1]
    ramp = LinearSegmentedColormap.from_list("weight", ["#f1f2f0", COLOURS[5], COLOURS[0]])
    place = {"extent": (0.5, n_rounds + 0.5, len(weights), 0), "aspect": "auto", "interpolation": "nearest"}
    image = panel.imshow(100 * weights[[*byzantine, *honest]], cmap=ramp, vmin=0, **place)
    panel.plot([0.5, n_rounds + 0.5], [n_attackers] * 2, color=RED, linewidth=1.5)
    panel.set_xlim(0.5, n_rounds + 2.5)
    panel.set_yticks(
        [n_attackers / 2, (n_attackers + len(weights)) / 2], [f"{n_attackers} attackers", f"{len(honest)} honest"]
    )
    panel.tick_params(axis="y", length=0, labelsize=10)
    panel.set_xlabel("round", color=GREY, fontsize=10)
    panel.set_title("The weight that the default gives each client in each round", color=DARK, fontsize=13, loc="left")
    bar = figure.colorbar(image, ax=panel, shrink=0.9, pad=0.01)
    bar.set_label("weight, %", color=GREY, fontsize=10)
    bar.outline.set_visible(False)
    bar.ax.tick_params(color=LIGHT, labelcolor=GREY, labelsize=8)
