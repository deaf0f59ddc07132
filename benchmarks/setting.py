"""What is trained in a row of the benchmark: the same model, data and recipe for every contestant."""

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from trivium.parallel.sharding.zero import AdamRule
from trivium.plan.plan import Plan
from trivium.seeds import generator_for

SEED = 11
LR = 1e-3
END = 0  # the token that ends a document, where they are apart
# Nobody clips: DTensor and pipelines would each need code of their own for one global norm.
RULE = AdamRule(clip=0.0)


@dataclass(frozen=True)
class Setting:
    """A GPT (pre-LayerNorm, GELU tanh, learned positions, biases, untied head), its batch and its recipe.

    sequences: of a step, over all replicas; micro: sequences of a micro-batch. weights: the dtype of the products;
    masters and moments are fp32. clip: the largest norm of the gradient, 0: any. documents: tokens of one, about, of
    those that are packed and do not see each other; 0: all see each other.
    """

    name: str
    hidden: int
    layers: int
    heads: int
    vocabulary: int
    sequence: int
    sequences: int
    micro: int
    weights: Literal["fp32", "bf16"] = "fp32"
    clip: float = 0.0
    documents: int = 0

    @property
    def rule(self) -> AdamRule:
        """The optimizer's constants."""
        return replace(RULE, clip=self.clip)

    def with_batch(self, sequences: int, micro: int) -> "Setting":
        """The same model with another batch."""
        return replace(self, sequences=sequences, micro=micro)

    def in_bf16(self) -> "Setting":
        """The same with products in bf16, named so."""
        return replace(self, name=f"{self.name} bf16", weights="bf16")

    def micro_batches(self, data: int = 1) -> int:
        """Micro-batches each of `data` replicas runs in a step."""
        return self.sequences // (self.micro * data)

    def plan(self, layers: tuple[int, ...] | None = None, **more: Any) -> Plan:
        """The plan of a Trivium run; layers: of each stage. `more` as in Plan."""
        return Plan(
            model={
                "layers": self.layers,
                "hidden": self.hidden,
                "heads": self.heads,
                "vocabulary": self.vocabulary,
                "sequence": self.sequence,
                "head": "untied",
                **({"documents": "apart", "end_of_text": END} if self.documents else {}),
            },
            batch={"sequences": self.sequences, "micro": self.micro},
            partition={"layers": layers},
            precision=more.pop("precision", {"weights": self.weights}),
            **more,
        ).checked()

    def rows(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """Tokens and targets of a step, each [sequences, positions]; four batches in turn."""
        z = generator_for(SEED, "benchmark", step % 4).integers(0, self.vocabulary, (self.sequences, self.sequence + 1))
        z[:, 1::2] = (z[:, :-1:2][:, : z[:, 1::2].shape[1]] * 7 + 3) % self.vocabulary  # something to learn
        if self.documents:
            chance = generator_for(SEED, "benchmark documents", step % 4).random(z.shape)
            z = np.where(chance < 1 / self.documents, END, np.maximum(z, END + 1))
        return z[:, :-1], z[:, 1:]


TINY = Setting("tiny", hidden=64, layers=8, heads=8, vocabulary=256, sequence=32, sequences=8, micro=8)
HIDDEN_256 = Setting("hidden 256", hidden=256, layers=4, heads=8, vocabulary=4096, sequence=256, sequences=4, micro=4)
HIDDEN_512 = replace(HIDDEN_256, name="hidden 512", hidden=512, sequences=2, micro=2)
