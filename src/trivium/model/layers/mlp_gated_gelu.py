"""The feed-forward half with a gate by GELU in its tanh form."""

from trivium.model.layers.half import Around
from trivium.model.layers.mlp_gated import MlpGated
from trivium.plan.layers.mlp_gated_gelu import MlpGatedGelu as Described


class MlpGatedGelu(MlpGated):
    """gate and up (columns split) -> GeGLU -> down (rows split)."""

    def __init__(self, part: Described, around: Around) -> None:
        super().__init__(part, around)
        self.function = around.operations.gated["gelu_tanh"]
