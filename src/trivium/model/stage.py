"""The part of the transformer between two pipeline borders."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import torch
from torch import nn

from trivium.comms.mesh import Mesh
from trivium.kernels.dtypes import DTYPES
from trivium.kernels.host_activations import AtBackward, HostActivations, Kept
from trivium.kernels.operations import Operations, operations_of
from trivium.model.compiled import opaque_context, opaque_region, options_for
from trivium.model.initialise import initial_values
from trivium.model.inputs import Inputs
from trivium.model.layers.embedding import Embedding
from trivium.model.layers.half import Around
from trivium.model.layers.head import Head, Losses
from trivium.model.layers.kinds import kind_of
from trivium.model.layers.scaled import scale_products
from trivium.model.layers.wiring import module_of
from trivium.model.likelihood import Likelihoods, likelihoods
from trivium.parallel.context.attention import Context
from trivium.parallel.tensor.regions import Region
from trivium.plan.layers.part import Owner, Parameter
from trivium.plan.parameters import TOKENS, shard_box, stage_parameters
from trivium.plan.plan import Plan
from trivium.plan.schedule import is_split


class Stage(nn.Module):
    """Consecutive blocks; the first stage also embeds, the last also computes the loss or the logits.

    `table` names every parameter it holds, as in the unsplit model, with its row of the parameter table.
    """

    def __init__(self, plan: Plan, number: int, mesh: Mesh) -> None:
        super().__init__()
        model = plan.model
        self.operations = operations_of(mesh.device.type)
        region, context = _around(plan, mesh, self.operations)
        ends = replace(region, encoding="exact", ring=False)
        self.number, self.model, self.weight_gradients = number, model, region.weight_gradients
        self.is_first, self.is_last = number == 0, number == plan.last_stage
        layers = plan.layers_of(number)
        self.table: dict[str, Parameter] = {
            p.name: p for p in stage_parameters(model, layers, first=self.is_first, last=self.is_last)
        }
        borrowed = TOKENS in self.table and not self.is_first
        has_table = TOKENS in self.table
        self.embedding: Embedding | None = None
        if has_table:
            self.embedding = kind_of(model.embedding_part)(model, ends, borrowed=borrowed)
        around = {n: Around(n, region, context, plan.recompute, self.operations, mesh.expert) for n in layers}
        blocks = {str(n): module_of(model.each_layer[n], around[n]) for n in layers}
        self.layers = nn.ModuleDict(blocks)
        # The activations of the first layers are kept on the host; the trainer sets it.
        self.layers_away = plan.offload.layers(len(layers))
        self.host: HostActivations | None = None
        self._weights: dict[nn.Module, frozenset[int]] = {}
        self.scaled = scale_products(self, self.table, plan, mesh, self.operations)
        self.head: Head | None = kind_of(model.head_part)(model, ends, self.operations) if self.is_last else None
        if plan.compiled:
            options = options_for(plan.activation_shape)
            for block in blocks.values():
                block.compile_training(options)
            if self.head is not None:
                self.head.compile_training()

    def forward(self, x: torch.Tensor | None, inputs: Inputs) -> torch.Tensor | Losses:
        """Return hidden states [S here, B, H]; on the last stage the losses by name, or logits if there are no targets.

        x: the previous stage's hidden states; None for the first stage.
        """
        x = self.hidden(x, inputs)
        return x if self.head is None else self.head(x, self._output_table(), inputs)

    def hidden(self, x: torch.Tensor | None, inputs: Inputs) -> torch.Tensor:
        """Return the hidden states [S here, B, H] after the blocks of this stage."""
        if self.is_first:
            assert self.embedding is not None, "the first stage embeds"
            embedded: torch.Tensor = self.embedding(inputs)
            if torch.is_grad_enabled() and not embedded.requires_grad:
                embedded.requires_grad_()  # a frozen embedding has no graph, but the blocks need one
            x = embedded
        assert x is not None, f"stage {self.number} needs the output of stage {self.number - 1}"
        before: Kept | None = None
        for number, block in enumerate(self.layers.values()):
            if number < self.layers_away and self.host is not None and torch.is_grad_enabled():
                layer = partial(block, inputs=inputs)
                x, before = self.host.run(layer, x, self._storages_of(block), before)
                continue
            x = block(x, inputs)
            if before is not None:  # its activations return during the backward of this layer
                (x,), before = AtBackward.apply(before.fetch, x), None
        return x

    def _storages_of(self, block: nn.Module) -> frozenset[int]:
        """Return the identities of the storages of a block's weights; buckets allocate them once."""
        if block not in self._weights:
            self._weights[block] = frozenset(int(p.untyped_storage()._cdata) for p in block.parameters())
        return self._weights[block]

    def predict(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits [T, vocabulary] of the last stage's hidden states [T, H], on every tensor rank."""
        assert self.head is not None, f"stage {self.number} has no head: the last stage predicts"
        if self.head.region.group.size > 1:
            return self.head.logits(x.unsqueeze(1), self._output_table()).squeeze(1)
        return self.head.product(self.head.normed(x), self._output_table()[: self.model.vocabulary])

    def modules_in_order(self) -> list[tuple[nn.Module, set[str], bool]]:
        """Return the modules in running order, the parameters each reads, and whether its backward reads them too."""
        found: list[tuple[nn.Module, set[str], bool]] = []
        if self.is_first and self.embedding is not None:
            found.append((self.embedding, self._names("embedding"), False))
        found += [(block, self._names(int(number)), True) for number, block in self.layers.items()]
        if self.head is not None:
            tied = {TOKENS} if self.model.head == "tied" else set()
            found.append((self.head, self._names("head") | tied, True))
        return found

    def _names(self, owner: Owner) -> set[str]:
        return {name for name, row in self.table.items() if row.owner == owner}

    def _output_table(self) -> nn.Parameter:
        assert self.head is not None, "only the last stage has a head"
        if self.model.head == "untied":
            return self.head.weight
        assert self.embedding is not None, "a tied head shares the embedding"
        return self.embedding.tokens.weight

    def likelihoods(self, x: torch.Tensor, *, rows: torch.Tensor, targets: torch.Tensor) -> Likelihoods:
        """Return the likelihoods of ids after hidden states [T, H] of the last stage; see model/likelihood.py."""
        assert self.head is not None, f"stage {self.number} has no head: the last stage predicts"
        group, vocabulary = self.head.region.group, self.model.vocabulary
        x, table = self.head.normed(x), self._output_table()
        return likelihoods(x, table, self.head, rows=rows, targets=targets, group=group, vocabulary=vocabulary)


def _around(plan: Plan, mesh: Mesh, operations: Operations) -> tuple[Region, Context]:
    """Return tensor region and context of the blocks. One that communicates or defers gradients is not compiled."""
    float8 = plan.precision.float8
    exchanges = mesh.tensor.size > 1 or (float8 is not None and (mesh.context.size > 1 or float8.recipe == "delayed"))
    opaque = plan.compiled and (exchanges or is_split(plan.schedule_table()))
    regions = opaque_region() if opaque else Region
    asked = mesh.context.size > 1 or plan.model.documents == "apart"  # numbers that vary with the batch
    contexts = opaque_context() if plan.compiled and asked else Context
    region = regions(
        mesh.tensor,
        plan.sequence_parallel,
        operations.products,
        row_chunks=plan.row_chunks,
        encoding=plan.messages.tensor,
        ring=plan.tensor_ring,
    )
    return region, contexts(mesh.context, plan.context_attention, operations.attention)


def build_stages(plan: Plan, mesh: Mesh, *, seed: int | None) -> dict[int, Stage]:
    """Return the stages of this rank by number, on its device, with initial values (without a seed: zeros).

    A first and a last stage on the same rank share one tied table.
    """
    stages = bare_stages(plan, mesh)
    for stage in stages.values():
        for name in stage.table:
            placed(stage, name, plan, mesh, seed=seed)
    share_table(stages, plan)
    return stages


def bare_stages(plan: Plan, mesh: Mesh) -> dict[int, Stage]:
    """Return the stages of this rank by number. A parameter uses no memory until it is `placed`."""
    with torch.device("meta"):
        stages = {number: Stage(plan, number, mesh) for number in plan.stages_of(mesh.pipeline.index)}
    return {number: stage.to(DTYPES[plan.precision.weights]) for number, stage in stages.items()}


@torch.no_grad()
def placed(stage: Stage, name: str, plan: Plan, mesh: Mesh, *, seed: int | None) -> nn.Parameter:
    """Allocate a parameter of a bare stage on this rank's device, and return it with its initial values (without a
    seed: zeros)."""
    path, _, own = name.rpartition(".")
    module, row = stage.get_submodule(path), stage.table[name]
    bare: nn.Parameter = getattr(module, own)
    dtype = DTYPES[plan.precision.masters] if row.wide else bare.dtype
    parameter = nn.Parameter(torch.zeros(bare.shape, dtype=dtype, device=mesh.device))
    setattr(module, own, parameter)
    if seed is not None:  # padded vocabulary rows stay zero
        box = shard_box(row, plan.model, plan.layout, mesh.tensor.index, mesh.expert.index)
        values = initial_values(row, plan.model, seed, box)
        parameter[tuple(slice(0, n) for n in box.shape)] = values.to(parameter.device, parameter.dtype)
    return parameter


def share_table(stages: Mapping[int, Stage], plan: Plan) -> None:
    """Let a first and a last stage on the same rank share one tied table, that of the first."""
    first, last = stages.get(0), stages.get(plan.last_stage)
    if plan.model.head == "tied" and first is not None and last is not None and first is not last:
        assert first.embedding is not None and last.embedding is not None, "both ends hold the tied table"
        last.embedding.tokens.weight = first.embedding.tokens.weight
