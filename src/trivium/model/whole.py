"""The whole model, to be asked: logits for any token ids, over the ranks of a mesh (tensor, pipeline, data)."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from trivium.comms.collectives import all_reduce_
from trivium.comms.group import Group
from trivium.comms.mesh import Mesh
from trivium.errors import ConfigError, DataError
from trivium.model.inputs import Inputs
from trivium.model.kv_cache import KVCache
from trivium.model.likelihood import Likelihoods
from trivium.model.stage import Stage, build_stages
from trivium.parallel.pipeline.relay import Relay
from trivium.plan.batch import Batch
from trivium.plan.layout import Layout
from trivium.plan.model_shape import ModelShape
from trivium.plan.plan import Plan
from trivium.plan.precision import Dtype, Precision
from trivium.plan.recompute import Recompute

# Not cuDNN's, which plans anew for every number of keys: one more with each token that is written.
KERNELS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


def answering_plan(model: ModelShape, layout: Layout, precision: Dtype) -> Plan:
    """How a model is spread out to answer; ConfigError when it does not fit the layout."""
    if layout.context > 1:
        raise ConfigError(
            f"plan.layout.context is {layout.context}, and ranks that answer share no sequence; set context to 1, and "
            f"data, tensor or pipeline to as many as there are to be"
        )
    return Plan(
        model=model,
        layout=layout,
        batch=Batch(sequences=layout.data * layout.pipeline),
        precision=Precision(weights=precision),
        zero=0,
    ).checked(layout.world_size)


class WholeModel:
    """Every rank of the mesh calls the same methods with the same arguments, except for what its data rank has.

    Legend: S positions, B sequences, H hidden, V vocabulary, T rows of hidden states.
    """

    def __init__(
        self, model: ModelShape, *, precision: Dtype, device: torch.device | None = None, mesh: Mesh | None = None
    ) -> None:
        mesh = mesh or Mesh.single(device)
        plan = answering_plan(model, mesh.layout, precision)
        mesh = mesh if mesh.expert.size == 1 else _to_answer(mesh)
        self._hold(plan, mesh, build_stages(plan, mesh, seed=None))

    @classmethod
    def sharing(cls, stages: Mapping[int, Stage], plan: Plan, mesh: Mesh) -> "WholeModel":
        """The model that a training under `plan` holds in `stages`: the same weights, not copies of them.

        Ranks that share sequences, or hold the same weights for other reasons, answer requests of their own. The
        stages given are neither run nor put into another mode.
        """
        mesh = _to_answer(mesh)
        answering = plan.model_copy(
            update={
                "layout": mesh.layout,
                "sequence_parallel": False,
                "row_chunks": 1,
                "overlap_tensor": False,
                "recompute": Recompute(),
                "compiled": False,
                "precision": plan.precision.model_copy(update={"float8": None}),
            }
        )
        found: WholeModel = cls.__new__(cls)
        # Of a head that ranks take in turns, that of the rank with the last layers answers.
        idle = {plan.last_stage} if plan.heads_in_turns and plan.last_stage - 1 not in stages else set()
        held = {n: _twin(stage, answering, mesh) for n, stage in stages.items() if n not in idle}
        found._hold(answering, mesh, held)
        return found

    def _hold(self, plan: Plan, mesh: Mesh, stages: Mapping[int, Stage]) -> None:
        self.plan, self.mesh, self.model, self.device = plan, mesh, plan.model, mesh.device
        self.stages = dict(sorted(stages.items()))
        for stage in self.stages.values():
            stage.eval()
        self._relay = Relay(mesh.pipeline)
        self._holders = {s: rank for rank in range(mesh.pipeline.size) for s in plan.stages_of(rank)}
        self.dtype = next(self.stage.parameters()).dtype

    @property
    def stage(self) -> Stage:
        """The only stage of this rank, but in a training that interleaves several."""
        return next(iter(self.stages.values()))

    @property
    def predicts(self) -> bool:
        """Whether this rank holds the last stage."""
        return self._last.is_last

    @property
    def _last(self) -> Stage:
        return next(reversed(self.stages.values()))

    def load(self, name: str, values: torch.Tensor) -> None:
        """Set a parameter by its name in the parameter table; padding stays zero."""
        target = self.stage.get_parameter(name)
        with torch.no_grad():
            target[tuple(slice(0, n) for n in values.shape)] = values.to(target.device, target.dtype)

    @torch.no_grad()
    def logits(self, rows: Sequence[Sequence[int]]) -> torch.Tensor:
        """Logits [B, S, V] of rows of token ids, on one rank; shorter rows are padded on the right, which causal
        attention never sees. DataError where a row is longer than the model, or an id is none of its vocabulary."""
        width = max(map(len, rows), default=0)
        if not 0 < width <= self.model.sequence:
            raise DataError(f"the longest row has {width} ids; give rows of 1 to {self.model.sequence}")
        padded = torch.tensor([[*row, *[0] * (width - len(row))] for row in rows], device=self.device)
        least, most = int(padded.min()), int(padded.max())
        if not 0 <= least <= most < self.model.vocabulary:
            last = self.model.vocabulary - 1
            raise DataError(f"ids reach from {least} to {most}, and the model's vocabulary is 0 to {last}")
        found: torch.Tensor = self.stage(None, Inputs(tokens=padded.T.contiguous()))
        return found.transpose(0, 1)

    @torch.inference_mode()
    def hidden(
        self, tokens: torch.Tensor, *, positions: torch.Tensor | None = None, cache: KVCache | None = None
    ) -> torch.Tensor | None:
        """Hidden states [S, B, H] behind the last block, where this rank holds it, otherwise None.

        tokens [S, B]; positions [S, B], None for 0, 1, …; cache: of what was read before.
        """
        inputs = Inputs(tokens=tokens, positions=positions, memory=cache)
        if cache is not None and any(self.model.form_of(n).window is not None for n in range(self.model.layers)):
            cache.place(inputs.numbers.expand_as(tokens).T)
        x = None
        for number, stage in self.stages.items():
            if not stage.is_first and number - 1 not in self.stages:
                room = torch.empty(*tokens.shape, self.model.hidden, dtype=self.dtype, device=self.device)
                x = self._relay.receive(room, self._holders[number - 1])
            with sdpa_kernel(KERNELS):
                x = stage.hidden(x, inputs)
            if stage.is_last:
                return x
            if number + 1 not in self.stages:
                self._relay.pass_on(x, self._holders[number + 1])
        return None

    @torch.inference_mode()
    def predict(self, hidden: torch.Tensor) -> torch.Tensor:
        """[T, H] of the last block -> logits [T, V]; only where `predicts`."""
        return self._last.predict(hidden)

    @torch.inference_mode()
    def likelihoods(self, hidden: torch.Tensor, *, rows: torch.Tensor, targets: torch.Tensor) -> Likelihoods:
        """How likely `targets` [A] are after `rows` [A] of hidden states [T, H]; only where `predicts`."""
        return self._last.likelihoods(hidden, rows=rows, targets=targets)

    def told(self, ids: torch.Tensor) -> torch.Tensor:
        """The ids that the last stage chose, [B], on every pipeline rank; the others give zeros of that shape.

        Ranks that divide experts all get what the first of them chose, because rounding may let others choose another.
        """
        expert = self.mesh.expert
        ids = ids if expert.index == 0 else torch.zeros_like(ids)
        return all_reduce_(all_reduce_(ids, self.mesh.pipeline), expert)

    def finish(self) -> None:
        """Wait until the next stage has taken everything."""
        self._relay.finish()


def _to_answer(mesh: Mesh) -> Mesh:
    """The same ranks, each replica for itself; what they say to one another is counted apart. Ranks that divide experts
    are one replica, all of whose ranks do the same work."""

    def apart(group: Group) -> Group:
        return replace(group, traffic=Counter(), waited=[0.0])

    replicas = apart(mesh.expert_replicas)
    layout = mesh.layout.model_copy(update={"data": replicas.size, "context": 1})
    return replace(
        mesh,
        layout=layout,
        tensor=apart(mesh.tensor),
        pipeline=apart(mesh.pipeline),
        data=replicas,
        replicas=replicas,
        expert=apart(mesh.expert),
        context=Group("context", (mesh.rank,), 0, None),
    )


def _twin(stage: Stage, plan: Plan, mesh: Mesh) -> Stage:
    """A stage under another plan with the parameters of this one."""
    with torch.device("meta"):
        found = Stage(plan, stage.number, mesh)
    theirs = dict(stage.named_parameters())
    for name in [name for name, _ in found.named_parameters()]:
        module, _, own = name.rpartition(".")
        setattr(found.get_submodule(module), own, theirs[name])
    return found
