"""Count what a stage keeps for its backward, at any width: its own forward runs on tensors without memory.

The operators are those of the processor, so what is counted is what a rank on a processor keeps.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Literal

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from trivium.certify.ways import Replaced, limits, replaced
from trivium.comms.mesh import Mesh
from trivium.comms.pretend import pretended
from trivium.kernels.dropout import DropoutKey
from trivium.kernels.dtypes import DTYPES
from trivium.kernels.sight import Sight
from trivium.model.inputs import Inputs
from trivium.model.loads import Averaging, Loads
from trivium.model.stage import Stage
from trivium.parallel.pipeline.saved_bytes import Counted, SavedBytes
from trivium.parallel.tensor import norm_over_heads
from trivium.plan.plan import Plan

Tensors = Literal["without memory", "with memory"]


def counted(plan: Plan, stage: int, tensors: Tensors = "without memory") -> Counted:
    """Return what the first rank with `stage` keeps of one micro-batch.

    Without memory it takes less than a second at any width; with memory a reduced model takes a tenth of that.
    """
    # Tensors without memory are normalised all rows at once.
    all_rows = (
        Replaced(norm_over_heads, "BLOCK_ELEMENTS", 1 << 62),
        *limits("kernels.cpu.rms_norm", BLOCK_ELEMENTS=1 << 62),
    )
    dtype = _dtype(DTYPES[plan.precision.weights])
    mode = FakeTensorMode() if tensors == "without memory" else nullcontext()
    with pretended(plan.layout, rank=0, ends=plan.ends) as mesh, mode, dtype, replaced(all_rows):
        part = Stage(plan, stage, mesh)
        part.weight_gradients.separate = True  # no product leaves its gradient to autograd, as in training
        x = None if stage == 0 else torch.zeros(plan.activation_shape, requires_grad=True)
        with SavedBytes(part.parameters()).counting() as found, warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Accessing the data pointer of FakeTensor")
            y = part(x, replace(_inputs(plan), loads=_loads(plan, mesh)))
        del y  # until here the graph kept every storage, and so every identity, in use
    return found


def _inputs(plan: Plan) -> Inputs:
    """A micro-batch of zeros, in the shapes of training.batches."""
    micro, here = plan.batch.micro, plan.local_sequence
    apart = plan.model.documents == "apart"
    tokens = torch.zeros((here, micro), dtype=torch.int64)
    return Inputs(
        tokens,
        torch.zeros_like(tokens),
        weights=torch.ones((here, micro), dtype=DTYPES[plan.precision.masters]),
        positions=torch.zeros_like(tokens) if apart else None,
        sight=_sight(plan),
        here=torch.zeros(here, dtype=torch.int64),
        dropout=DropoutKey(1, 0, tuple(range(micro)), plan.model.sequence),
    )


def _loads(plan: Plan, mesh: Mesh) -> Loads:
    """The loads of a step, with losses of routers as in training."""
    tokens = plan.model.sequence * plan.batch.sequences
    averaging = Averaging(plan.model.sequence, tokens, plan.model.layers, 1.0, mesh.context, mesh.replicas)
    return Loads(averaging, plan.batch.micro)


def _sight(plan: Plan) -> Sight:
    ranks = range(plan.layout.context)
    if plan.layout.context > 1 and plan.context_attention == "ring":
        return Sight(tuple(np.array(plan.positions_of(c)) for c in ranks), None)
    apart = plan.model.documents == "apart"
    return Sight((), np.zeros((plan.model.sequence, plan.batch.micro), np.int64) if apart else None)


@contextmanager
def _dtype(dtype: torch.dtype) -> Iterator[None]:
    """New tensors are of this dtype."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
