"""Gradients by CUDA graphs: one graph for each client's pass, a few of them in parallel."""

from __future__ import annotations

import gc
from typing import NamedTuple

from bartizan.lab.training.gradients.passes import Gradients, Pass, rows_for
from bartizan.lab.training.torch_import import Tensor, nn, torch

LANES = 8  # passes in parallel: one client's batch does not fill a large GPU


class Lane(NamedTuple):
    """A captured pass of one client, and the tensors that it reads and writes."""

    stream: torch.cuda.Stream
    graph: torch.cuda.CUDAGraph
    weights: Tensor
    images: Tensor
    labels: Tensor
    row: Tensor
    loss: Tensor


class Captured(Pass):
    """The pass of `Loop`, captured once for each lane and replayed for every client.

    `compiled` fuses norms and activations; compiling takes half a minute, and pays off from about a thousand steps of
    all clients on.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        compiled: bool = False,
        precision: torch.dtype = torch.float32,
    ) -> None:
        super().__init__(model)
        self.precision = precision
        if compiled:
            self.loss = torch.compile(self.loss)  # type: ignore[method-assign]
        self._lanes: dict[tuple[torch.Size, torch.dtype], list[Lane]] = {}

    def __call__(self, weights: Tensor, images: Tensor, labels: Tensor, out: Tensor | None = None) -> Gradients:
        rows = rows_for(weights, images, out)
        losses = rows.new_empty(len(rows))
        each = weights.expand(len(rows), -1)
        lanes = self._lanes_for(each[0], images[0], labels[0])
        now = torch.cuda.current_stream()
        for lane in lanes:
            lane.stream.wait_stream(now)
        for m in range(len(rows)):
            lane = lanes[m % len(lanes)]
            with torch.cuda.stream(lane.stream):
                for buffer, given in zip(lane[2:5], (each[m], images[m], labels[m]), strict=True):
                    buffer.copy_(given)
                lane.graph.replay()
                rows[m] = lane.row
                losses[m] = lane.loss
        for lane in lanes:
            now.wait_stream(lane.stream)
        return Gradients(rows, losses)

    def _lanes_for(self, weights: Tensor, images: Tensor, labels: Tensor) -> list[Lane]:
        kind = images.shape, weights.dtype
        if kind not in self._lanes:
            self.set_training_mode()
            gc.collect()  # freeing an older graph during a capture breaks it
            self._lanes[kind] = [self._captured(weights, images, labels) for _ in range(LANES)]
        return self._lanes[kind]

    def _captured(self, weights: Tensor, images: Tensor, labels: Tensor) -> Lane:
        buffers = weights.clone(), images.clone(), labels.clone()
        stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):  # what libraries choose and allocate at first must not be captured
                self.one(*buffers)
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, stream=stream):
            row, loss = self.one(*buffers)
        return Lane(stream, graph, *buffers, row, loss)
