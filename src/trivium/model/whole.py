"""The whole model, to be asked: logits for any token ids, over the ranks of a mesh (tensor, pipeline, data)."""

from collections.abc import Sequence

import torch

from trivium.model.inputs import Inputs
from trivium.model.likelihood import Likelihoods
from trivium.model.memory import Memory
from trivium.model.stage import Stage, build_stages
from trivium.parallel.collectives import all_reduce_
from trivium.parallel.mesh import Mesh
from trivium.parallel.relay import Relay
from trivium.plan.batch import Batch
from trivium.plan.layout import Layout
from trivium.plan.model_shape import ModelShape
from trivium.plan.plan import Plan
from trivium.plan.precision import Dtype, Precision


def answering_plan(model: ModelShape, layout: Layout, precision: Dtype) -> Plan:
    """How a model is spread out to answer; ConfigError when it does not fit the layout."""
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
        self,
        model: ModelShape,
        *,
        precision: Dtype,
        device: torch.device | None = None,
        mesh: Mesh | None = None,
    ) -> None:
        self.mesh = mesh or Mesh.single(device)
        self.plan = answering_plan(model, self.mesh.layout, precision)
        self.model, self.device = model, self.mesh.device
        self.stage: Stage = build_stages(self.plan, self.mesh, seed=None)[self.mesh.at.pipeline]
        self.stage.eval()
        self._relay = Relay(self.mesh.pipeline)
        self._like = next(self.stage.parameters())

    @property
    def predicts(self) -> bool:
        """Whether this rank holds the last stage."""
        return self.stage.is_last

    def load(self, name: str, values: torch.Tensor) -> None:
        """Set a parameter by its name in the parameter table; padding stays zero."""
        target = self.stage.get_parameter(name)
        with torch.no_grad():
            target[tuple(slice(0, n) for n in values.shape)] = values.to(target.device, target.dtype)

    @torch.no_grad()
    def logits(self, rows: Sequence[Sequence[int]]) -> torch.Tensor:
        """Logits [B, S, V] of rows of token ids, on one rank; shorter rows are padded on the right, which causal
        attention never sees."""
        width = max(len(row) for row in rows)
        padded = torch.tensor([[*row, *[0] * (width - len(row))] for row in rows], device=self.device)
        found: torch.Tensor = self.stage(None, Inputs(tokens=padded.T.contiguous()))
        return found.transpose(0, 1)

    @torch.inference_mode()
    def hidden(
        self, tokens: torch.Tensor, *, positions: torch.Tensor | None = None, memory: Memory | None = None
    ) -> torch.Tensor | None:
        """Hidden states [S, B, H] behind the last block, where this rank holds it, otherwise None.

        tokens [S, B]; positions [S, B], None for 0, 1, …; memory: of what was read before.
        """
        x = None
        if not self.stage.is_first:
            shape = (*tokens.shape, self.model.hidden)
            x = self._relay.receive(torch.empty(shape, dtype=self._like.dtype, device=self.device))
        y = self.stage.hidden(x, Inputs(tokens=tokens, positions=positions, memory=memory))
        if self.predicts:
            return y
        self._relay.pass_on(y)
        return None

    @torch.inference_mode()
    def predict(self, hidden: torch.Tensor) -> torch.Tensor:
        """[T, H] of the last block -> logits [T, V]; only where `predicts`."""
        return self.stage.predict(hidden)

    @torch.inference_mode()
    def likelihoods(self, hidden: torch.Tensor, *, rows: torch.Tensor, targets: torch.Tensor) -> Likelihoods:
        """How likely `targets` [A] are after `rows` [A] of hidden states [T, H]; only where `predicts`."""
        return self.stage.likelihoods(hidden, rows=rows, targets=targets)

    def told(self, ids: torch.Tensor) -> torch.Tensor:
        """The ids that the last stage chose, [B], on every pipeline rank; the others give zeros of that shape."""
        return all_reduce_(ids, self.mesh.pipeline)

    def finish(self) -> None:
        """Wait until the next stage has taken everything."""
        self._relay.finish()
