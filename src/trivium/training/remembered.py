"""What adapters remember from one step to the next: parameters that follow from weights and gradients."""

from collections.abc import Iterable, Iterator

import torch

from trivium.comms.collectives import all_gather_into
from trivium.model.layers.linear import Linear
from trivium.model.stage import Stage
from trivium.parallel.sharding.buckets import Bucket
from trivium.parallel.sharding.shard import Shard

Tensor = torch.Tensor


@torch.no_grad()
def remember(
    stages: Iterable[Stage], buckets: Iterable[Bucket], shards: Iterable[Shard], factor: Tensor | float
) -> None:
    """Let adapters see the reduced gradients times `factor`, right before an update; every rank calls this."""
    remembering = [found for stage in stages for found in _remembering(stage)]
    if not remembering:
        return
    gradients = dict(_whole_gradients(shards))
    bucket_of = {id(slot.parameter): bucket for bucket in buckets for slot in bucket.slots}
    for linear in remembering:
        added = dict(linear.adapter.named_parameters()) if linear.adapter is not None else {}
        held = {id(b): b for b in (bucket_of[id(p)] for p in (linear.weight, *added.values()))}
        for bucket in held.values():
            bucket.hold()
        own = {name: gradients[id(p)] * factor for name, p in added.items() if id(p) in gradients}
        assert linear.adapter is not None, "only adapted layers remember"
        adapter = linear.adapter.adapter
        for name, values in adapter.remembered(linear.adapter.base, linear, added, own).items():
            added[name].copy_(values)
            bucket = bucket_of[id(added[name])]
            if bucket.zero >= 3:
                bucket.shard.copy_(bucket.weights[bucket.owned])
        for bucket in held.values():
            bucket.drop()


def _remembering(stage: Stage) -> Iterator[Linear]:
    for module in stage.modules():
        if isinstance(module, Linear) and module.adapter is not None and module.adapter.adapter.remembers:
            yield module


def _whole_gradients(shards: Iterable[Shard]) -> Iterator[tuple[int, Tensor]]:
    """Yield the gradient of each trained parameter by its id, gathered from the ranks that own slices of it."""
    for shard in shards:
        bucket, mine = shard.bucket, shard.gradient()
        whole = mine
        if bucket.sharers.size > 1:
            whole = torch.empty(bucket.padded, dtype=mine.dtype, device=mine.device)
            all_gather_into(whole, mine, bucket.sharers)
        for slot in bucket.slots:
            yield id(slot.parameter), whole[slot.start : slot.stop].view(slot.parameter.shape)
