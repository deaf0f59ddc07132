"""An embedding whose vectors are multiplied by a constant, as in Gemma and Granite."""

from dataclasses import dataclass

from trivium.plan.layers.embedding import Embedding


@dataclass(frozen=True)
class EmbeddingScaled(Embedding):
    """scale: what the vectors, learned positions included, are multiplied by."""

    scale: float = 1.0
