"""Detects silent corruption: compares by checksums what several ranks hold alike, and names the rank that differs.

These are equal, bit for bit: weights over replicas (below ZeRO stage 3); masters and moments, at stage 3 weights too,
over the ranks that hold the same slice (at stage 0: over replicas); parameters that tensor ranks do not split, with
their states, where their gradients are summed in one order; and a tied table at both ends of the pipeline.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch

from trivium.checkpoint.agree import sums, told_by_first
from trivium.comms.collectives import all_gather
from trivium.comms.group import Group
from trivium.comms.mesh import Mesh
from trivium.errors import TriviumError
from trivium.parallel.sharding.buckets import Bucket
from trivium.parallel.sharding.shard import Shard
from trivium.training.config import is_nth
from trivium.training.loop import Loop, Observer
from trivium.training.trainer import StepResult, Trainer

Tensor = torch.Tensor

_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_WIDTH = 1024  # columns whose sums are weighted apart


class Held(NamedTuple):
    """Values that every rank of a group must hold alike."""

    name: str
    values: Tensor


class ReplicasDiffer(TriviumError):
    """Ranks that must hold the same do not: memory, a link or a device changed bits of `ranks`."""

    def __init__(self, ranks: Sequence[int], told: str) -> None:
        self.ranks = tuple(ranks)
        who = (
            f"rank {ranks[0]} holds"
            if len(ranks) == 1
            else f"one of ranks {', '.join(map(str, ranks))} (which one, so few cannot tell) holds"
        )
        super().__init__(
            f"silent corruption: {who} other bits than its replicas ({told}); nothing was saved since, so the last "
            f"checkpoint is sound: go on from there, and without that device if it happens again"
        )


class Corruption(Observer):
    """Compares every `training.supervision.replicas_every` steps, and before every save."""

    def after_step(self, loop: Loop, result: StepResult) -> None:
        if loop.checkpoint_due or is_nth(loop.step, loop.config.supervision.replicas_every):
            compare_replicas(loop.trainer)


def compare_replicas(trainer: Trainer) -> None:
    """Called by every rank after a step. ReplicasDiffer on each of them when some hold other bits than the rest."""
    votes, told = defaultdict[int, float](float), list[str]()
    for group, held in replicated(trainer):
        if group.size == 1 or not held:
            continue
        mine = torch.stack([checksum(h.values) for h in held])
        every = all_gather(mine.unsqueeze(0), group).T.tolist()  # [held, ranks]
        for item, found in zip(held, every, strict=True):
            suspects = odd_ones(found)
            if suspects:
                told.append(item.name)
                for index in suspects:
                    votes[group.ranks[index]] += 1 / (len(suspects) * group.size)
    mesh = trainer.mesh
    ranks = range(mesh.layout.world_size)
    total = sums([votes[rank] for rank in ranks], mesh)
    if not any(total):
        return
    most = max(total)
    text = told_by_first(f"{told[0]} and {len(told) - 1} more" if told else "", mesh)
    raise ReplicasDiffer([rank for rank in ranks if total[rank] > most * 0.999], text)


def replicated(trainer: Trainer) -> Iterator[tuple[Group, list[Held]]]:
    """What this rank holds like the other ranks of each group."""
    plan, mesh = trainer.plan, trainer.mesh
    over_replicas, over_holders = list[Held](), list[Held]()
    over_tensor, over_ends = list[Held](), list[Held]()
    shards = {id(shard.bucket): shard for shard in trainer.optimizer.shards}
    for bucket in trainer.buckets:
        name, owned = bucket.slots[0].row.name, bucket.owned.start
        states = _states(shards[id(bucket)]) if bucket.trains else []
        if plan.zero < 3:
            over_replicas.append(Held(f"weights from {name} on", bucket.weights))
        else:
            over_holders.append(Held(f"weights from {name} on", bucket.shard))
        over_holders += [Held(f"{kind} from {name} on", values) for kind, values, _ in states]
        alike = [("weights", *((bucket.weights, 0) if plan.zero < 3 else (bucket.shard, owned)))]
        alike += [(kind, values, owned + start) for kind, values, start in states]
        for part in _runs(bucket):
            cut = [
                Held(f"{kind} of {part.name}", values[max(0, part.start - start) : max(0, part.stop - start)])
                for kind, values, start in alike
            ]
            if not part.split and (mesh.tensor in bucket.partial_over or sums_in_one_order(mesh)):
                over_tensor += cut
            if mesh.ends in bucket.partial_over:
                over_ends += cut
    yield mesh.replicas, over_replicas
    yield mesh.replicas if plan.zero == 0 else mesh.holders, over_holders
    yield mesh.tensor, over_tensor
    yield mesh.ends, over_ends


def _states(shard: Shard) -> list[tuple[str, Tensor, int]]:
    """The master weights, where they are apart, and every state, each with where it begins in the shard."""
    apart = shard.master.data_ptr() != shard.bucket.shard.data_ptr()
    masters = [("master", shard.master, 0)] if apart else []
    return masters + [(k, v, part.where.start) for part in shard.parts for k, v in part.states.items()]


def sums_in_one_order(mesh: Mesh) -> bool:
    """Whether each tensor rank's sum over its own replicas adds in the order of the others: processors add in that of
    the ranks, NCCL as each communicator's ranks are connected. Of two numbers every order is one."""
    return mesh.device.type == "cpu" or mesh.replicas.size <= 2


class _Run(NamedTuple):
    name: str
    start: int
    stop: int
    split: bool


def _runs(bucket: Bucket) -> list[_Run]:
    """The slots of a bucket, those together that follow one another and are alike split over tensor ranks or not."""
    runs: list[_Run] = []
    for slot in bucket.slots:
        split = slot.row.split is not None
        if runs and runs[-1].stop == slot.start and runs[-1].split == split:
            runs[-1] = runs[-1]._replace(stop=slot.stop)
        else:
            runs.append(_Run(slot.row.name, slot.start, slot.stop, split))
    return runs


def checksum(values: Tensor) -> Tensor:
    """An int64 of the bits of a tensor, on its device: any one bit changes it, and so does the order of most parts.

    Sums modulo 2^64 of the 8-byte words in each of many columns, each times an odd number of its own.
    """
    flat, per_word = values.detach().contiguous().view(-1), 8 // values.element_size()
    if flat.storage_offset() % per_word:
        flat = flat.clone()  # words begin where a tensor begins
    odd = torch.arange(1, 2 * per_word * _WIDTH, 2, dtype=torch.int64, device=values.device)
    whole = len(flat) // (per_word * _WIDTH) * per_word * _WIDTH
    columns = flat[:whole].view(torch.int64).view(-1, _WIDTH).sum(0) * odd[:_WIDTH]
    rest = flat[whole:].view(_BITS[values.element_size()]).to(torch.int64)
    return columns.sum() + (rest * odd[: len(rest)]).sum()


def odd_ones(found: Sequence[int]) -> list[int]:
    """The indices that differ from what most hold; all of them when there is no such majority; none when all agree."""
    ((common, number), *others) = Counter(found).most_common()
    if not others:
        return []
    if 2 * number > len(found):
        return [n for n, value in enumerate(found) if value != common]
    return list(range(len(found)))
