"""Gradients by CUDA graphs: one for the pass of all clients, or one for each client's, a few of them in parallel."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import NamedTuple, TypeVar
from warnings import warn

from bartizan.lab.training.gradients.grouped import Grouped
from bartizan.lab.training.gradients.passes import Gradients, Pass, rows_for
from bartizan.lab.training.torch_import import Tensor, nn, torch

T = TypeVar("T")
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


def capture(call: Callable[[], T]) -> tuple[torch.cuda.CUDAGraph, T] | None:
    """A graph of what a call starts on the GPU, and the tensors that it returns, which every replay writes anew.

    None, with a warning, where it can't be captured.
    """
    gc.collect()  # freeing an older graph during a capture breaks it
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):  # what libraries choose and allocate at first must not be captured
            call()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()  # a graph has memory of its own
    try:
        with torch.cuda.graph(graph, stream=stream):
            result = call()
    except RuntimeError as wrong:
        warn(f"Not captured as a CUDA graph, and so slower: {str(wrong).partition(chr(10))[0]}", stacklevel=2)
        torch.cuda.synchronize()
        return None
    return graph, result


class CapturedGrouped(Pass):
    """`Grouped` where clients share the weights, captured once for each number of clients, and replayed.

    A pass is a few thousand short kernels, which Python can't start as fast as a large GPU computes them.
    """

    def __init__(self, grouped: Grouped) -> None:
        super().__init__(grouped.model)
        self.grouped = grouped
        self._captured: dict[torch.Size, tuple[torch.cuda.CUDAGraph, tuple[Tensor, ...], Gradients] | None] = {}

    def __call__(self, weights: Tensor, images: Tensor, labels: Tensor, out: Tensor | None = None) -> Gradients:
        if images.shape not in self._captured:
            self._captured[images.shape] = self._capture(weights, images, labels)
        captured = self._captured[images.shape]
        if captured is None:
            return self.grouped(weights, images, labels, out)
        graph, buffers, got = captured
        for buffer, given in zip(buffers, (weights, images, labels), strict=True):
            buffer.copy_(given)
        graph.replay()
        rows = rows_for(weights, images, out)
        rows.copy_(got.rows)
        return Gradients(rows, got.losses.clone())

    def _capture(self, *given: Tensor) -> tuple[torch.cuda.CUDAGraph, tuple[Tensor, ...], Gradients] | None:
        buffers = tuple(one.clone() for one in given)
        found = capture(lambda: self.grouped(*buffers))
        return None if found is None else (found[0], buffers, found[1])


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
