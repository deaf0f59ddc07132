"""Pack documents into bins of a fixed size."""

from collections.abc import Sequence

from trivium.errors import DataError


def pack(lengths: Sequence[int], size: int) -> list[list[int]]:
    """Return bins of document numbers by best fit decreasing.

    The longest document comes first, and each goes to the fullest bin that has room for it; documents of equal length
    keep their order. Raises DataError for a document of more than `size`.
    """
    bins: list[list[int]] = []
    with_room: list[list[int]] = [[] for _ in range(size + 1)]  # the bins with each room
    rooms = 0  # bit n: whether a bin has room n
    for number in sorted(range(len(lengths)), key=lambda n: -lengths[n]):
        length = lengths[number]
        if length > size:
            raise DataError(f"document {number} has {length} tokens, more than the {size} of a bin; split it")
        fitting = rooms >> length
        if fitting:
            room = length + (fitting & -fitting).bit_length() - 1  # the least that suffices
            mine = with_room[room].pop()
            if not with_room[room]:
                rooms ^= 1 << room
        else:
            room, mine = size, len(bins)
            bins.append([])
        bins[mine].append(number)
        with_room[room - length].append(mine)
        rooms |= 1 << (room - length)
    return bins


def shares(costs: Sequence[float], ranks: int) -> list[list[int]]:
    """Divide samples among ranks so that each has the same number, and the largest sum of costs is small.

    The most expensive sample comes first, and each goes to the rank with the least so far that still has room; ties go
    to the first. The numbers of a rank rise.
    """
    each = len(costs) // ranks
    found: list[list[int]] = [[] for _ in range(ranks)]
    sums = [0.0] * ranks
    for number in sorted(range(len(costs)), key=lambda n: -costs[n]):
        rank = min((r for r in range(ranks) if len(found[r]) < each), key=lambda r: sums[r])
        found[rank].append(number)
        sums[rank] += costs[number]
    return [sorted(numbers) for numbers in found]
