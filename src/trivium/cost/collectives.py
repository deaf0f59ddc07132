"""Seconds of collectives, as rings: a start, one latency for each hop, and the bytes moved over the bandwidth.

Degrees, bytes and bandwidths may be arrays with one entry per plan. Where a group of ranks sits decides its link:
ranks fill nodes in order, so a group whose ranks are `stride` apart has node / stride of them in a node, and a ring
through several nodes uses the network cards of all its ranks in a node at once. All wait for the slowest group.
"""

from typing import NamedTuple

import numpy as np

from trivium.cost.case import Case
from trivium.cost.hardware import Link, Machine
from trivium.plan.layers.part import Number

WHOLE = 1e-9  # what rounding may take from a whole number of ranks


class Road(NamedTuple):
    """What a group of ranks talks over: seconds to start and of a hop, and bytes per second of a whole group."""

    start: Number
    hop: Number
    bandwidth: Number


class Strides(NamedTuple):
    """How far apart neighbours along each axis are, in ranks, or as `even_stride` has it. replicas: of the nearer of
    data and context. sharers, holders: of the groups that replicas form where they share several copies of what ZeRO
    shards."""

    tensor: Number
    context: Number
    replicas: Number
    pipeline: Number
    sharers: Number
    holders: Number


def all_reduce_seconds(tensor_bytes: Number, degree: Number, road: Link | Road) -> Number:
    """A reduce-scatter and an all-gather, started once."""
    road = road_of(road)
    return 2 * all_gather_seconds(tensor_bytes, degree, road)


def all_gather_seconds(tensor_bytes: Number, degree: Number, road: Link | Road) -> Number:
    """Return the seconds of an all-gather, by the bytes of the whole tensor; a reduce-scatter takes as long.

    The start is that of an all-reduce, shared by its two halves.
    """
    road, degree = road_of(road), np.asarray(degree)
    moved = 1.0 * tensor_bytes * (degree - 1) / degree  # not in whole numbers, which would overflow
    ring = moved / road.bandwidth + road.start / 2 + (degree - 1) * road.hop
    return np.where(degree > 1, ring, 0.0)


def send_seconds(tensor_bytes: Number, road: Link | Road) -> Number:
    """One tensor to one neighbour."""
    road = road_of(road)
    return tensor_bytes / road.bandwidth + road.start / 2 + road.hop


def exchange_seconds(machine: Machine, tensor_bytes: Number, degree: Number, stride: Number, fabric: float) -> Number:
    """Each rank's tensor of so many bytes in equal parts to all ranks of its group: those for its own node over the
    node's links, the others over its own card."""
    degree = np.asarray(degree)
    near = ranks_in_node(machine, degree, stride)
    inside, outside = machine.node_link, machine.fabric_link
    crosses, part = near < degree, tensor_bytes / degree
    moving = np.maximum(
        part * (near - 1) / inside.effective_bandwidth, part * (degree - near) / (outside.effective_bandwidth * fabric)
    )
    start = np.where(crosses, outside.start_seconds, inside.start_seconds) / 2
    hop = np.where(crosses, outside.latency_seconds * _tree(degree), inside.latency_seconds)
    return np.where(degree > 1, moving + start + (degree - 1) * hop, 0.0)


def road_of(road: Link | Road) -> Road:
    """A link as one device sees it."""
    if isinstance(road, Road):
        return road
    return Road(road.start_seconds, road.latency_seconds, road.effective_bandwidth)


def default_strides(case: Case, machine: Machine) -> Strides:
    """Of the default order of axes: tensor, context, data, pipeline, the fastest first."""
    c, near = case, case.tensor * case.context
    strides = Strides(1, c.tensor, c.tensor, near * c.data, c.tensor, c.tensor * c.sharers)
    degrees = Strides(c.tensor, c.context, c.replicas, c.pipeline, c.sharers, c.copies)
    every = zip(degrees, strides, strict=True)
    return Strides(*(even_stride(machine, c.ranks, degree, stride) for degree, stride in every))


def even_stride(machine: Machine, ranks: Number, degree: Number, stride: Number) -> Number:
    """The stride at which as many share a node as of the slowest of the groups of `degree` ranks, `stride` apart, that
    lie beside one another: where they neither fill nodes nor divide them, some straddle two, by as few ranks as divide
    both."""
    degree, stride = np.asarray(degree, np.int64), np.asarray(stride, np.int64)
    node, span = machine.devices_per_node, degree * stride
    straddles = (np.asarray(ranks) > node) & (span % node > 0) & (node % span > 0)
    near = np.clip(np.gcd(node, span) // stride, 1, degree)
    return np.where(straddles & (machine.sharing == "exclusive"), node / near, stride)


def ranks_in_node(machine: Machine, degree: Number, stride: Number) -> Number:
    """Return how many ranks of a group of `degree` ranks, `stride` apart, share a node."""
    node = np.inf if machine.sharing == "shared" else machine.devices_per_node
    return np.clip(np.floor(node / np.asarray(stride) + WHOLE), 1, degree)


def road_between(machine: Machine, degree: Number, stride: Number, fabric: float) -> Road:
    """What a group of `degree` ranks, `stride` apart, talks over. fabric: the share of its bandwidth it reaches."""
    inside, outside = machine.node_link, machine.fabric_link
    near = ranks_in_node(machine, degree, stride)
    crosses = near < degree
    cards = np.minimum(inside.effective_bandwidth, outside.effective_bandwidth * fabric * near)
    return Road(
        np.where(crosses, outside.start_seconds, inside.start_seconds),
        np.where(crosses, outside.latency_seconds * _tree(degree), inside.latency_seconds),
        np.where(crosses, cards, inside.effective_bandwidth),
    )


def road_to_neighbour(machine: Machine, degree: Number, stride: Number, fabric: float) -> Road:
    """What neighbours along an axis send over; the slowest of its hops, as one device sees it."""
    inside, outside = machine.node_link, machine.fabric_link
    node = np.inf if machine.sharing == "shared" else machine.devices_per_node
    crosses = np.asarray(degree) * stride > node
    return Road(
        np.where(crosses, outside.start_seconds, inside.start_seconds),
        np.where(crosses, outside.latency_seconds, inside.latency_seconds),
        np.where(crosses, outside.effective_bandwidth * fabric, inside.effective_bandwidth),
    )


def _tree(degree: Number) -> Number:
    """Hops of a tree over those of a ring: libraries turn to trees where a ring through many nodes would wait."""
    n = np.maximum(2, np.asarray(degree, dtype=float))
    hops: Number = np.log2(n) / (n - 1)
    return hops
