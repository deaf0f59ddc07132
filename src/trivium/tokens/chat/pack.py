"""Pack documents into bins of a fixed size."""

from collections.abc import Sequence


def pack(lengths: Sequence[int], size: int) -> list[list[int]]:
    """Return bins of document numbers by best fit decreasing: each document goes to the fullest bin with room.

    No document may be longer than `size`.
    """
    bins: list[list[int]] = []
    room: list[int] = []
    for number in sorted(range(len(lengths)), key=lambda n: -lengths[n]):
        fits = [b for b, left in enumerate(room) if left >= lengths[number]]
        if fits:
            best = min(fits, key=lambda b: room[b])
        else:
            best = len(bins)
            bins.append([])
            room.append(size)
        bins[best].append(number)
        room[best] -= lengths[number]
    return bins
