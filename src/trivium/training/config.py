"""The recipe: how long, how fast, how often (MT-NLG, section 3.2). No torch here."""

from typing import Annotated, Literal

from pydantic import Field

from trivium.config import Config

Count = Annotated[int, Field(ge=1)]
NotNegative = Annotated[int, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0, le=1)]


class TrainingConfig(Config):
    """Learning rate and batch are functions of tokens, so they mean the same under any batch size."""

    steps: Count = 200  # optimizer steps
    lr: Annotated[float, Field(gt=0)] = 3e-3  # peak learning rate
    lr_final_fraction: Fraction = 0.1  # of the peak, at the end of the decay
    warmup_tokens: NotNegative = 0  # linear from 0
    decay_tokens: NotNegative = 0  # cosine, counted from token 0; 0: until the last step
    weight_decay: Annotated[float, Field(ge=0)] = 0.1  # none on biases and norms
    clip: Annotated[float, Field(ge=0)] = 1.0  # global gradient norm; 0: never clipped
    beta1: Fraction = 0.9
    beta2: Fraction = 0.95
    epsilon: Annotated[float, Field(gt=0)] = 1e-8
    checkpoint_every: Count = 50  # steps; the last step is always saved
    keep_last: Count = 3  # checkpoints kept besides those that `keep_every` spares
    keep_every: NotNegative = 0  # steps; 0: none is spared
    milestones: Literal["none", "pythia"] = (
        "none"  # pythia: also save and keep 0, 1, 2, 4 … 512, every 1000th
    )
    save: Literal["background", "waiting"] = "background"  # does training go on while a copy is written
    save_failures: Count = 3  # saves that may fail in a row before the run stops
    start_from: str | None = None  # a checkpoint whose weights a new run begins with; None: drawn by the seed
    validate_every: Count = 50  # steps; the last step is always validated
    validation_samples: Count = 128  # sequences; fewer where the validation split has fewer, and then told
    restarts: NotNegative = 2  # times a failed job is restarted from its last checkpoint
