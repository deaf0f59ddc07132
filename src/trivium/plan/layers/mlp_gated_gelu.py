"""The feed-forward half with a gate of GELU in its tanh form (GeGLU, arXiv 2002.05202)."""

from dataclasses import dataclass

from trivium.plan.layers.mlp_gated import MlpGated


@dataclass(frozen=True)
class MlpGatedGelu(MlpGated):
    """MlpGated with GELU (GeGLU). Sizes and memory do not depend on the function of the gate."""
