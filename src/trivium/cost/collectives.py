"""Seconds of the collectives, as rings over a link: bytes moved over bandwidth, and one latency per hop."""

from trivium.cost.hardware import Link


def all_reduce_seconds(tensor_bytes: float, degree: int, link: Link) -> float:
    """A reduce-scatter and an all-gather."""
    return 2 * all_gather_seconds(tensor_bytes, degree, link)


def all_gather_seconds(tensor_bytes: float, degree: int, link: Link) -> float:
    """Of a tensor of so many bytes when whole; a reduce-scatter takes as long."""
    if degree == 1:
        return 0.0
    moved = tensor_bytes * (degree - 1) / degree
    return moved / link.effective_bandwidth + (degree - 1) * link.latency_seconds


def send_seconds(tensor_bytes: float, link: Link) -> float:
    """One tensor to one neighbour."""
    return tensor_bytes / link.effective_bandwidth + link.latency_seconds
