"""Seconds of ring collectives: a start-up time, one latency per hop, and the moved bytes over the bandwidth.

Where the machine says so, the receivers of a message also translate the addresses of its pages.

Degrees, bytes and bandwidths may be arrays with one entry per plan. Ranks fill nodes in order, so a group with a
distance of `stride` between its ranks has node / stride ranks in each node. A ring through several nodes uses the
network cards of all its ranks in a node at once. The slowest group determines the time of all.
"""

from typing import NamedTuple

import numpy as np

from trivium.cost.case import Case
from trivium.cost.hardware import Link, Machine
from trivium.plan.layers.part import Number

RANK_TOLERANCE = 1e-9  # rounding error of a whole number of ranks


class GroupLink(NamedTuple):
    """Link costs of a group of ranks. bandwidth: bytes per second of the whole group. walk_seconds, page_bytes,
    page_seconds: of `Translation`."""

    start_seconds: Number
    hop_seconds: Number
    bandwidth: Number
    walk_seconds: Number = 0.0
    page_bytes: Number = 1
    page_seconds: Number = 0.0

    def translation_seconds(self, message_bytes: Number) -> Number:
        """Return the seconds in which the receivers of a message translate addresses."""
        pages = np.ceil(np.asarray(message_bytes) / self.page_bytes)
        seconds: Number = self.walk_seconds + pages * self.page_seconds
        return seconds


class Strides(NamedTuple):
    """Distance in ranks between neighbours along each axis, or the result of `even_stride`.

    replicas: along the nearer of the data and context axes. sharers, holders: within the sharding and the replicate
    groups (HSDP) of the replicas. expert, expert_sharers: among the ranks that divide the experts of a layer, and among
    those that share one copy of the state of the same experts.
    """

    tensor: Number
    context: Number
    replicas: Number
    pipeline: Number
    sharers: Number
    holders: Number
    expert: Number = 1
    expert_sharers: Number = 1


def all_reduce_seconds(tensor_bytes: Number, degree: Number, link: Link | GroupLink) -> Number:
    """Return the seconds of an all-reduce: a reduce-scatter and an all-gather with one start-up, of which the second
    finds the addresses that the first translated."""
    link = link_of_device(link)
    return 2 * _ring_seconds(tensor_bytes, degree, link) + _translation_seconds(tensor_bytes, degree, link)


def all_gather_seconds(tensor_bytes: Number, degree: Number, link: Link | GroupLink) -> Number:
    """Return the seconds to all-gather a tensor of `tensor_bytes` (its gathered size). A reduce-scatter takes the same
    time. Each pays half of an all-reduce's start-up."""
    link = link_of_device(link)
    return _ring_seconds(tensor_bytes, degree, link) + _translation_seconds(tensor_bytes, degree, link)


def _ring_seconds(tensor_bytes: Number, degree: Number, link: GroupLink) -> Number:
    degree = np.asarray(degree)
    moved = 1.0 * tensor_bytes * (degree - 1) / degree  # Floating point, because integers would overflow.
    ring = moved / link.bandwidth + link.start_seconds / 2 + (degree - 1) * link.hop_seconds
    return np.where(degree > 1, ring, 0.0)


def _translation_seconds(tensor_bytes: Number, degree: Number, link: GroupLink) -> Number:
    return np.where(np.asarray(degree) > 1, link.translation_seconds(tensor_bytes), 0.0)


def send_seconds(tensor_bytes: Number, link: Link | GroupLink) -> Number:
    """Return the seconds to send one tensor to one neighbour."""
    link = link_of_device(link)
    sent = tensor_bytes / link.bandwidth + link.start_seconds / 2 + link.hop_seconds
    return sent + link.translation_seconds(tensor_bytes)


def exchange_seconds(machine: Machine, tensor_bytes: Number, degree: Number, stride: Number, fabric: float) -> Number:
    """Return the seconds of an all-to-all, in which each rank sends `tensor_bytes` in equal parts to all ranks of its
    group. Parts for the same node use the node's links, the others the rank's own network card."""
    degree = np.asarray(degree)
    near = ranks_in_node(machine, degree, stride)
    inside, outside = machine.node_link, machine.fabric_link
    part = tensor_bytes / degree
    moving = np.maximum(
        part * (near - 1) / inside.effective_bandwidth, part * (degree - near) / (outside.effective_bandwidth * fabric)
    )
    link = link_of_group(machine, degree, stride, fabric)
    seconds = moving + link.start_seconds / 2 + (degree - 1) * link.hop_seconds
    return np.where(degree > 1, seconds + link.translation_seconds(tensor_bytes), 0.0)


def link_of_device(link: Link | GroupLink) -> GroupLink:
    """Return the costs of a link for a single device."""
    if isinstance(link, GroupLink):
        return link
    found = GroupLink(link.start_seconds, link.latency_seconds, link.effective_bandwidth)
    if (pages := link.translation) is None:
        return found
    return found._replace(walk_seconds=pages.walk_seconds, page_bytes=pages.page_bytes, page_seconds=pages.page_seconds)


def default_strides(case: Case, machine: Machine) -> Strides:
    """Return the strides of the default order of axes: tensor, context, data, pipeline, the fastest first."""
    c, near = case, case.tensor * case.context
    strides = Strides(1, c.tensor, c.tensor, near * c.data, c.tensor, c.tensor * c.sharers)
    degrees = Strides(c.tensor, c.context, c.replicas, c.pipeline, c.sharers, c.copies)
    if np.any(np.asarray(c.expert) > 1):
        strides = strides._replace(expert=c.tensor, expert_sharers=c.tensor * c.expert)
        degrees = degrees._replace(expert=c.expert, expert_sharers=c.expert_sharers)
    every = zip(degrees, strides, strict=True)
    return Strides(*(even_stride(machine, c.ranks, degree, stride) for degree, stride in every))


def even_stride(machine: Machine, ranks: Number, degree: Number, stride: Number) -> Number:
    """Return the stride at which as many ranks share a node as in the slowest of the adjacent groups of `degree` ranks,
    `stride` apart. Groups that neither fill nodes nor divide them may straddle two nodes; gcd(node, span) gives the
    smallest part."""
    degree, stride = np.asarray(degree, np.int64), np.asarray(stride, np.int64)
    node, span = machine.devices_per_node, degree * stride
    straddles = (np.asarray(ranks) > node) & (span % node > 0) & (node % span > 0)
    near = np.clip(np.gcd(node, span) // stride, 1, degree)
    return np.where(straddles & (machine.sharing == "exclusive"), node / near, stride)


def ranks_in_node(machine: Machine, degree: Number, stride: Number) -> Number:
    """Return how many ranks of a group of `degree` ranks, `stride` apart, share a node."""
    node = np.inf if machine.sharing == "shared" else machine.devices_per_node
    return np.clip(np.floor(node / np.asarray(stride) + RANK_TOLERANCE), 1, degree)


def link_of_group(machine: Machine, degree: Number, stride: Number, fabric: float) -> GroupLink:
    """Return the link of a group of `degree` ranks, `stride` apart. fabric: reachable fraction of the fabric's
    bandwidth."""
    inside, outside = machine.node_link, machine.fabric_link
    near = ranks_in_node(machine, degree, stride)
    found = _one_of(near < degree, outside, inside)
    cards = np.minimum(inside.effective_bandwidth, outside.effective_bandwidth * fabric * near)
    return found._replace(
        hop_seconds=np.where(near < degree, outside.latency_seconds * _tree(degree), inside.latency_seconds),
        bandwidth=np.where(near < degree, cards, inside.effective_bandwidth),
    )


def link_to_neighbour(machine: Machine, degree: Number, stride: Number, fabric: float) -> GroupLink:
    """Return the link between neighbours along an axis: the slowest hop, for a single device."""
    inside, outside = machine.node_link, machine.fabric_link
    node = np.inf if machine.sharing == "shared" else machine.devices_per_node
    crosses = np.asarray(degree) * stride > node
    bandwidth = np.where(crosses, outside.effective_bandwidth * fabric, inside.effective_bandwidth)
    return _one_of(crosses, outside, inside)._replace(bandwidth=bandwidth)


def _one_of(crosses: Number, outside: Link, inside: Link) -> GroupLink:
    """Return the costs for a single device of the fabric where a group crosses nodes, else of the node's links."""
    every = zip(link_of_device(outside), link_of_device(inside), strict=True)
    return GroupLink(*(np.where(crosses, far, near) for far, near in every))


def _tree(degree: Number) -> Number:
    """Return the hops of a tree over those of a ring, because libraries use trees across many nodes."""
    n = np.maximum(2, np.asarray(degree, dtype=float))
    hops: Number = np.log2(n) / (n - 1)
    return hops
