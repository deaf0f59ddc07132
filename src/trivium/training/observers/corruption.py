"""Detects silent corruption: compares checksums of tensors that several ranks replicate, and names the rank that
differs.

These are equal, bit for bit: weights over replicas (below ZeRO stage 3); masters and moments, at stage 3 weights too,
over the ranks that own the same slice (at stage 0: over replicas); parameters that tensor ranks do not split, with
their states, if their gradients are summed in one order; and a tied embedding at both ends of the pipeline.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch

from trivium.checkpoint.agree import first_message, sums
from trivium.comms.collectives import all_gather
from trivium.comms.group import Group
from trivium.comms.mesh import Mesh
from trivium.errors import TriviumError
from trivium.parallel.sharding.shard import Shard
from trivium.training.config import is_nth
from trivium.training.loop import Loop, Observer
from trivium.training.trainer import StepResult, Trainer

Tensor = torch.Tensor
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_CHECKSUM_COLUMNS = 1024  # columns whose sums have separate weights


class Held(NamedTuple):
    """Values that every rank of a group must replicate."""

    name: str
    values: Tensor


class ReplicasDiffer(TriviumError):
    """Ranks that must have equal tensors do not: memory, a link or a device changed bits of `ranks`."""

    def __init__(self, ranks: Sequence[int], names: str) -> None:
        self.ranks = tuple(ranks)
        who = (
            f"rank {ranks[0]} holds"
            if len(ranks) == 1
            else f"one of ranks {', '.join(map(str, ranks))} (which one, so few cannot tell) holds"
        )
        super().__init__(
            f"silent corruption: {who} other bits than its replicas ({names}); nothing was saved since, so the last "
            f"checkpoint is intact: resume from it, and without that device if it happens again"
        )


class Corruption(Observer):
    """Compares every `training.supervision.replicas_every` steps, and before every save and copy."""

    def after_step(self, loop: Loop, result: StepResult) -> None:
        every = loop.config.supervision.replicas_every, loop.config.near.every
        if loop.checkpoint_due or any(is_nth(loop.step, n) for n in every):
            compare_replicas(loop.trainer)


def compare_replicas(trainer: Trainer) -> None:
    """Raise ReplicasDiffer on every rank if some have other bits than the rest; every rank calls this after a step."""
    votes, differing = defaultdict[int, float](float), list[str]()
    for group, held in replicated(trainer):
        if group.size == 1 or not held:
            continue
        mine = torch.stack([checksum(h.values).to(trainer.mesh.device) for h in held])
        every = all_gather(mine.unsqueeze(0), group).T.tolist()  # [held, ranks]
        for item, checksums in zip(held, every, strict=True):
            suspects = odd_ones(checksums)
            differing += [item.name] if suspects else []
            for index in suspects:
                votes[group.ranks[index]] += 1 / (len(suspects) * group.size)
    mesh = trainer.mesh
    ranks = range(mesh.layout.world_size)
    total = sums([votes[rank] for rank in ranks], mesh)
    if any(total):
        names = first_message(f"{differing[0]} and {len(differing) - 1} more" if differing else "", mesh)
        raise ReplicasDiffer([rank for rank in ranks if total[rank] > max(total) * 0.999], names)


def replicated(trainer: Trainer) -> Iterator[tuple[Group, list[Held]]]:
    """Yield each group of ranks with the values of this rank that all of them replicate."""
    plan, mesh = trainer.plan, trainer.mesh
    found: dict[Group, list[Held]] = {
        group: [] for group in (mesh.replicas, mesh.expert_replicas, mesh.holders, mesh.tensor, mesh.ends)
    }
    shards = {id(shard.bucket): shard for shard in trainer.optimizer.shards}
    for bucket in trainer.buckets:
        name, owned = bucket.slots[0].row.name, bucket.owned.start
        states = _states(shards[id(bucket)]) if bucket.trains else []
        weights, start = (bucket.weights, 0) if plan.zero < 3 else (bucket.shard, owned)
        owners = bucket.holders  # at stage 0 the replicas
        found[bucket.replicas if plan.zero < 3 else owners].append(Held(f"weights from {name} on", weights))
        found[owners] += [Held(f"{kind} from {name} on", values) for kind, values, _ in states]
        alike = [("weights", weights, start), *((kind, values, owned + at) for kind, values, at in states)]
        for slot in bucket.slots:
            cut = [
                Held(f"{kind} of {slot.row.name}", values[max(0, slot.start - at) : max(0, slot.stop - at)])
                for kind, values, at in alike
            ]
            if slot.row.split is None and (mesh.tensor in bucket.partial_over or sums_in_one_order(mesh)):
                found[mesh.tensor] += cut
            if mesh.ends in bucket.partial_over:
                found[mesh.ends] += cut
    yield from found.items()


def _states(shard: Shard) -> list[tuple[str, Tensor, int]]:
    """Return the master weights, if they are separate, and every optimizer state, with its offset in the shard."""
    separate = shard.master.data_ptr() != shard.bucket.shard.data_ptr()
    masters = [("master", shard.master, 0)] if separate else []
    return masters + [(k, v, part.where.start) for part in shard.parts for k, v in part.states.items()]


def sums_in_one_order(mesh: Mesh) -> bool:
    """Whether each tensor rank's sum over its own replicas has the order of the others' sums: CPUs add in the order of
    the ranks, NCCL as each communicator's ranks are connected. For two numbers the order does not matter."""
    return mesh.device.type == "cpu" or mesh.replicas.size <= 2


def checksum(values: Tensor) -> Tensor:
    """Return an int64 on the tensor's device: any changed bit changes it, and so do most exchanged elements.

    It sums the 8-byte words of each of many columns modulo 2^64, times an odd weight for each column.
    """
    flat, per_word = values.detach().contiguous().view(-1), 8 // values.element_size()
    if flat.storage_offset() % per_word:
        flat = flat.clone()  # words begin where a tensor begins
    odd = torch.arange(1, 2 * per_word * _CHECKSUM_COLUMNS, 2, dtype=torch.int64, device=values.device)
    whole = len(flat) // (per_word * _CHECKSUM_COLUMNS) * per_word * _CHECKSUM_COLUMNS
    columns = flat[:whole].view(torch.int64).view(-1, _CHECKSUM_COLUMNS).sum(0) * odd[:_CHECKSUM_COLUMNS]
    rest = flat[whole:].view(_BITS[values.element_size()]).to(torch.int64)
    return columns.sum() + (rest * odd[: len(rest)]).sum()


def odd_ones(checksums: Sequence[int]) -> list[int]:
    """Return the indices that differ from the majority; all of them if there is none; none if all agree."""
    ((common, number), *others) = Counter(checksums).most_common()
    if not others:
        return []
    return [n for n, value in enumerate(checksums) if value != common or 2 * number <= len(checksums)]
