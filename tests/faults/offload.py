"""Faults of optimizer state and activations on the host."""

from collections.abc import Iterator, Sequence

import torch

from faults.mutant import fault, plan
from trivium.kernels.host import Exchange
from trivium.kernels.host_activations import Kept
from trivium.parallel.sharding.shard import Part

Tensor = torch.Tensor

STATE = plan(offload={"optimizer": 0.5})
MASTERS = plan(data=2, zero=2, offload={"optimizer": 1.0})
ACTIVATIONS = plan(offload={"activations": 1.0})
IN_STAGES = plan(pipeline=2, offload={"activations": 0.5})


@fault(Part, "pieces", STATE, MASTERS)
def piece_at_a_boundary_twice(original, mesh):
    """The last piece of a part is updated twice."""

    def pieces(self: Part) -> Iterator[Part]:
        *others, last = original(self)
        return iter([*others, last, last])

    return pieces


@fault(Part, "pieces", STATE, MASTERS)
def piece_at_a_boundary_never(original, mesh):
    """The last piece of a part is not updated."""
    return lambda self: iter(list(original(self))[:-1])


@fault(Exchange, "through", STATE, MASTERS)
def state_does_not_return(original, mesh):
    """What an update makes of the state stays on the device."""

    def through(self: Exchange, pieces: Sequence[Sequence[Tensor]]) -> Iterator[list[Tensor]]:
        return original(self, [[x.clone() for x in piece] for piece in pieces])

    return through


@fault(Kept, "fetch", ACTIVATIONS, IN_STAGES)
def activations_not_awaited(original, mesh):
    """A backward begins before its activations are back, and reads what was in their place."""

    def fetch(self: Kept) -> None:
        original(self)
        for x in self._here:
            x.zero_()

    return fetch


@fault(Kept, "fetch", ACTIVATIONS, IN_STAGES)
def activations_of_the_layer_before(original, mesh):
    """A layer's backward gets the activations of the layer before it."""

    def fetch(self: Kept) -> None:
        if self._before is not None and not self._here:
            self._there = [x.clone() for x in self._before._there]
        original(self)

    return fetch


@fault(Kept, "send", ACTIVATIONS, IN_STAGES)
def activations_sent_in_another_order(original, mesh):
    """Two tensors of a layer that are equally large are exchanged on their way to the host."""

    def send(self: Kept) -> None:
        pairs = [(a, b) for a in range(len(self._here)) for b in range(a) if len(self._here[a]) == len(self._here[b])]
        for a, b in pairs[:1]:
            self._here[a], self._here[b] = self._here[b], self._here[a]
        original(self)

    return send
