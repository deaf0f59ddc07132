"""Choice of the activations that are computed again in the backward instead of being kept."""

from typing import Annotated, Literal

from trivium.config import Config, Positive, Short


class Recompute(Config):
    """mode "layer": only the input of a block is kept (MT-NLG section 2); "attention": all but the attention
    core; "none": everything is kept. `every`: only every k-th block of the model is recomputed, counted from its first.
    activation_function: what GELU or SwiGLU gives is not kept in any block, only what it read."""

    # activations recomputed in the backward: none, those of attention's core, or whole layers
    mode: Annotated[Literal["none", "attention", "layer"], Short("recompute")] = "none"
    every: Positive = 1  # recompute in every k-th layer only
    activation_function: bool = False  # also recompute GELU or SwiGLU, in every layer

    @property
    def words(self) -> str:
        """A description for people of what is computed again."""
        some = f"1 layer in {self.every}"
        modes = {"none": "", "attention": f"attention of {some}", "layer": some}
        parts = [modes[self.mode] if self.every > 1 else self.mode.removeprefix("none")]
        parts += ["activation function"] if self.activation_function else []
        return " and ".join(filter(None, parts)) or "none"

    def mode_of(self, layer: int) -> Literal["none", "attention", "layer"]:
        """The mode of a block, by its number in the model."""
        return self.mode if layer % self.every == 0 else "none"
