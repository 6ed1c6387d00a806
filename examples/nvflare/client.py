"""A site: it trains on its own images; three of the nine attack instead."""

from __future__ import annotations

import argparse

import nvflare.client as flare
import torch
from torch.nn.functional import cross_entropy

from garments import Network, accuracy, examples

BATCHES, BATCH = 60, 64


def train(model: torch.nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    optimiser = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    total = 0.0
    for _ in range(BATCHES):
        batch = torch.randint(len(labels), (BATCH,))
        loss = cross_entropy(model(images[batch]), labels[batch])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        total += loss.item() / BATCHES
    return total


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--hostile", type=int, default=3, help="how many sites attack: site-1, site-2 ...")
    parser.add_argument(
        "--momentum", type=float, default=0.0, help="send a mean over rounds, with this part of the last"
    )
    hostile, beta = (args := parser.parse_args()).hostile, args.momentum
    torch.set_num_threads(1)
    flare.init()
    number = int(flare.get_site_name().removeprefix("site-"))
    torch.manual_seed(number)
    images, labels = examples(number - 1)
    model, sent = Network(), {}
    while flare.is_running():
        given = flare.receive().params
        model.load_state_dict(given)
        score = accuracy(model, (images, labels))
        loss = train(model.train(), images, labels)
        # The change of the model, as a mean over the rounds: a site's process, and so `sent`, lives through the job.
        change = {name: tensor.detach() - given[name] for name, tensor in model.state_dict().items()}
        sent = {name: beta * sent[name] + (1 - beta) * change[name] for name in change} if sent else change
        state = {name: given[name] + sent[name] for name in sent}
        if number <= hostile:
            state = attack(number, given, state)
        metrics = {"accuracy": score, "loss": loss}
        flare.send(flare.FLModel(params=state, metrics=metrics, meta={"NUM_STEPS_CURRENT_ROUND": BATCHES}))


def attack(number: int, given: dict, state: dict) -> dict:
    if number == 1:  # one broken number is enough for a mean
        return {name: tensor * float("nan") for name, tensor in state.items()}
    # the step reversed, four times as long
    return {name: given[name] - 4 * (state[name] - given[name]) for name in state}


if __name__ == "__main__":
    main()
