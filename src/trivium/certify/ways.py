"""Code paths of the engine that no plan selects. They follow from sizes, hosts, the kind of processor, dtypes and time.

A reduced model in fp64 on one host would always take the same path. Here limits are lowered so that it takes the others
too: several buckets, blocks of queries, pieces of products, messages over the network, separate master weights. All
ranks read the limits alike, and some limits must agree on both sides of a message, so a rank keeps its path for life.

Three more run another model or batch: 64 steps, more layers, or more micro-batches than any constant by which they may
be counted.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from trivium.certify.courses import LARGEST_SCALE, LONG, OVERFLOWS, SCALE_GROWTH_STEPS, SHORT, Course
from trivium.certify.reduce import thin_and_deep, thin_and_long, thin_and_many
from trivium.comms import transports
from trivium.kernels import scaled_attention
from trivium.kernels.operations import Operations, operations_of
from trivium.model import stage
from trivium.parallel.context import ring as ring_attention
from trivium.parallel.sharding import zero
from trivium.parallel.sharding.buckets import Bucket
from trivium.parallel.sharding.shard import Shard
from trivium.parallel.tensor import norm_over_heads, vocabulary
from trivium.parallel.tensor import regions as tensor
from trivium.plan import buckets
from trivium.plan.plan import Plan
from trivium.training import loss_scale
from trivium.training.loss_scale import LossScale
from trivium.training.trainer import Trainer

Tensor = torch.Tensor

UPDATE_ELEMENTS = 1500  # elements
LOSS_SCALE = 2.0**10  # a power of two rounds nothing
ABSENT = object()


class Replaced(NamedTuple):
    """A temporary value for an attribute of a module or a class."""

    owner: Any
    attribute: str
    value: Any

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Set the attribute while the context is open."""
        before = vars(self.owner).get(self.attribute, ABSENT)
        setattr(self.owner, self.attribute, self.value)
        try:
            yield
        finally:
            if before is ABSENT:
                delattr(self.owner, self.attribute)
            else:
                setattr(self.owner, self.attribute, before)


@contextmanager
def replaced(every: Iterable[Replaced]) -> Iterator[None]:
    """Apply all replacements while the context is open."""
    with ExitStack() as stack:
        for each in every:
            stack.enter_context(each.applied())
        yield


def limits(module: str, **values: Any) -> tuple[Replaced, ...]:
    """Replace attributes of a backend's module, which is named as a path below trivium; () where it was deleted."""
    path = f"trivium.{module}"
    if find_spec(path.rpartition(".")[0]) is None:
        return ()
    return tuple(Replaced(import_module(path), name, value) for name, value in values.items())


def _unchanged(plan: Plan) -> Plan:
    return plan


@dataclass(frozen=True)
class Way:
    """A code path of the engine that no plan selects.

    replaced: limits, and functions that ask about the machine. by_memory: messages between ranks of this host go
    through shared memory. narrow: master weights are separate from the weights, and the loss is scaled. in_order:
    transfers between stages as with NCCL. refuses: 0-based steps before which an update is rejected. shaped: makes the
    plan that is run out of a reduced plan; applied to its own result it changes nothing. course: length of the
    training.
    """

    name: str
    replaced: tuple[Replaced, ...] = ()
    by_memory: bool = True
    narrow: bool = False
    in_order: bool = False
    refuses: tuple[int, ...] = ()
    shaped: Callable[[Plan], Plan] = _unchanged
    course: Course = SHORT

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Make this process use the code path while the context is open."""
        with replaced(self.replaced):
            yield

    def prepare(self, trainer: Trainer) -> None:
        """Change a trainer before its first step."""
        if self.in_order:
            trainer.transport = "in order"
        if self.narrow:
            trainer.loss_scale = LossScale(LOSS_SCALE)
            for shard in trainer.optimizer.shards:
                shard.master = shard.master.clone()


def _updated_together(shards: Sequence[Shard], at_once: int) -> list[list[Shard]]:
    """Update several buckets at once, as GPUs do."""
    return TOGETHER(shards, UPDATE_ELEMENTS)


def _is_for_our_products(a: Tensor, b: Tensor) -> bool:
    return not torch.compiler.is_compiling()


def _reference_but_products(device: str) -> Operations:
    """The operations that a device without a backend has; a processor's products."""
    return Operations(products=operations_of(device).products)


TOGETHER = zero.together

# Each below what most reduced models have, so that both sides of it are met, and dividing few sizes.
SMALL_LIMITS = (
    Replaced(buckets, "BUCKET_ELEMENTS", 700),
    Replaced(buckets, "LONE_BUCKET_ELEMENTS", 300),
    Replaced(vocabulary, "BLOCK_ROWS", 5),
    Replaced(tensor, "BLOCK_ROWS", 5),
    Replaced(ring_attention, "BLOCK_QUERIES", 2),
    Replaced(scaled_attention, "BLOCK_QUERIES", 3),
    Replaced(transports, "DIRECT_BYTES", 700),
    Replaced(norm_over_heads, "BLOCK_ELEMENTS", 40),
    *limits("comms.host_memory.loans", INLINE_BYTES=72),
    *limits("comms.host_memory.transport", INLINE_BYTES=72, PIECE_BYTES=200),
    *limits("kernels.cpu.gelu", MIN_ELEMENTS=40, PIECE_ELEMENTS=37),
    *limits("kernels.cpu.block_attention", MIN_SCORES=1, MIN_POSITIONS=4, BLOCK_QUERIES=4, BLOCK_QUERIES_ON_INTEL=4),
    *limits("kernels.cpu.block_attention", BLOCK_QUERIES_IN_WINDOW=4, MIN_FAR_STRIDE_BYTES=300),
)
# Products and attention as processors that are not MKL's maker's compute them, products by an operator of fp64.
PRODUCTS_IN_PIECES = (
    *limits("kernels.cpu.processor", _IS_INTEL=False, _WITHOUT_AVX512=False),
    *limits(
        "kernels.cpu.product",
        MIN_MULTIPLICATIONS=100,
        MAX_WHOLE_TRANSPOSE_ELEMENTS=300,
        TRANSPOSE_BLOCK_ELEMENTS=64,
        MIN_TRANSPOSE_COLUMNS=3,
    ),
    *limits("kernels.cpu.product", _is_for_one_dnn=_is_for_our_products, _by_one_dnn=F.linear),
)
AS_ACCELERATORS = (
    *limits("kernels.cpu.processor", _IS_INTEL=True),
    *limits("kernels.cpu.product", MIN_MULTIPLICATIONS=100),  # biases are added after MKL's products
    Replaced(stage, "operations_of", _reference_but_products),
    Replaced(zero, "together", _updated_together),
    Replaced(zero.ShardedOptimizer, "_gathers_beside_forward", True),
)
ADDED_BY_US = (Replaced(Bucket, "adds_itself", property(lambda self: False, lambda self, value: None)),)

AS_IT_IS = Way("as it is")
LARGE = Way("large", (*SMALL_LIMITS, *PRODUCTS_IN_PIECES))
NARROW = Way("narrow", (*SMALL_LIMITS, *AS_ACCELERATORS, *ADDED_BY_US), narrow=True, refuses=(1,))
FAR = Way("far", (Replaced(transports, "DIRECT_BYTES", 4000),), by_memory=False, in_order=True)
LONG_WAY = Way(
    "long",
    (Replaced(loss_scale, "GROWTH_STEPS", SCALE_GROWTH_STEPS), Replaced(loss_scale, "MAX_SCALE", LARGEST_SCALE)),
    narrow=True,
    refuses=OVERFLOWS,
    shaped=thin_and_long,
    course=LONG,
)
DEEP = Way("deep", shaped=thin_and_deep)
MANY = Way("many", shaped=thin_and_many)
WAYS = (AS_IT_IS, LARGE, NARROW, FAR)
EVERY_WAY = (*WAYS, LONG_WAY, DEEP, MANY)  # modes in which a single plan is certified
IN_TURN = (*WAYS * 3, LONG_WAY, *WAYS * 3, DEEP, *WAYS * 3, MANY)  # modes of the plans of a sweep, in turn
