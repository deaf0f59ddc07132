"""The training config: how long, how fast, how often (MT-NLG, section 3.2). No torch here."""

from typing import Annotated, Literal

from pydantic import Field

from trivium.config import MOST, Config, NotNegative, Positive
from trivium.units import listed

Fraction = Annotated[float, Field(ge=0, le=1)]
Decay = Annotated[float, Field(ge=0, lt=1)]  # of a running mean; at 1 it would never learn
Seconds = Annotated[float, Field(ge=0)]
DecayName = Literal["cosine", "linear", "constant", "inverse_sqrt", "wsd"]
FinalDecayShape = Literal["1-sqrt", "linear"]


def is_nth(step: int, every: int) -> bool:
    """Whether `step` is a multiple of `every`; never if that is 0."""
    return every > 0 and step % every == 0


class Supervision(Config):
    """How faults are detected and handled; it does not change what is computed."""

    restart_seconds: Seconds = 1.0  # pause before the first restart; it doubles with each, up to a minute
    preemption_seconds: Seconds = 100.0  # within which a job that a signal asks to end must have saved
    # minimum time of a step that counts as hanging; 3 x the 99th percentile of steps if that is more
    hang_seconds: Annotated[float, Field(gt=0)] = 30.0
    # the same in the first step, and while starting, ending a trace, validating, evaluating or saving
    stall_seconds: Annotated[float, Field(gt=0)] = 600.0
    # of a collective whose other ranks do not come; where they may compile, stall_seconds if that is more
    timeout_seconds: Annotated[float, Field(gt=0)] = 120.0
    # that the hosts of a job wait for a lost host; in job files for torchrun and Kubernetes
    host_seconds: Annotated[float, Field(gt=0)] = 3600.0
    replicas_every: NotNegative = 100  # steps between comparisons of replicas, besides those before every save; 0: none
    slow_every: NotNegative = 50  # steps between comparisons of the ranks' working time; 0: never
    slow_factor: Annotated[float, Field(gt=1)] = 1.5  # a rank that works this many times longer than its peers is slow


class SpikesConfig(Config):
    """What counts as a loss spike, and what follows; a step that spikes never changes a weight."""

    # stop: end with an error; skip: omit the step; rewind: go back to a checkpoint and continue without its samples
    policy: Literal["stop", "skip", "rewind"] = "stop"
    # above the median; 0: only values that are not finite are spikes
    deviations: Annotated[float, Field(ge=0)] = 0.0
    window: Annotated[int, Field(ge=4, le=MOST)] = 128  # recent steps that loss and gradient norm are compared with
    batches: Positive = 1  # that a rewind skips; the last of them is the one that spiked
    limit: Positive = 10  # consecutive spikes, or rewinds from one step, after which training stops

    @property
    def reach(self) -> int:
        """The number of batches that a rewind skips; 1 under another policy, for the step in progress."""
        return self.batches if self.policy == "rewind" else 1


class Examination(Config):
    """Evaluation on published tasks during training; it does not change what is trained."""

    every: NotNegative = 0  # steps; the model is also evaluated after the last step; 0: never
    tasks: str = "mt-nlg"  # names separated by commas, as for `trivium evaluate --tasks`
    data: str | None = None  # folder with a folder of JSON lines for each task; None: from the Hub
    shots: Annotated[tuple[NotNegative | Literal["few"], ...], Field(min_length=1)] = (0,)  # before each question
    limit: Positive = 100  # questions of each task, chosen by the seed of the run


class ProfileConfig(Config):
    """Traces of single steps by torch.profiler; they do not change what is computed."""

    steps: tuple[Positive, ...] = ()  # counted from 1; each has a separate file
    on_ranks: tuple[NotNegative, ...] | None = (0,)  # that write a trace; None: all
    memory: bool = False  # also record every allocation

    def problems(self, steps: int, ranks: int) -> list[str]:
        """Return an error for steps and ranks that a training of `steps` steps on `ranks` ranks does not have."""
        wrong = (
            ("steps", [n for n in self.steps if n > steps], f"training.steps is {steps}, counted from 1"),
            ("on_ranks", [n for n in self.on_ranks or () if n >= ranks], f"there are {ranks} ranks, counted from 0"),
        )
        return [
            f"training.profile.{name} has {listed(beyond)}, and {rule}; leave them out"
            for name, beyond, rule in wrong
            if beyond
        ]


class TrainingConfig(Config):
    """Learning rate and batch are functions of tokens, so they mean the same under any batch size."""

    steps: Positive = 200  # optimizer steps
    lr: Annotated[float, Field(gt=0)] = 3e-3  # peak learning rate
    # final rate as a fraction of the peak, at the end of the decay and after it; constant has none
    lr_final_fraction: Fraction = 0.1
    warmup_tokens: NotNegative = 0  # linear from 0
    # of the learning rate after the warm-up. cosine, linear: to the final rate at the end of the decay; constant: none;
    # inverse_sqrt: by the root of warmup_tokens / tokens, to the final rate; wsd (warm-up, stable, decay): none until
    # `final_decay_tokens` before the end
    decay: DecayName = "cosine"
    decay_tokens: NotNegative = 0  # where the decay ends, counted from token 0; 0: at the last step
    final_decay_tokens: NotNegative = 0  # wsd: tokens of the final decay, which ends at `decay_tokens`
    final_decay_shape: FinalDecayShape = "1-sqrt"  # wsd: from the peak to the final rate (arXiv 2405.18392)
    weight_decay: Annotated[float, Field(ge=0)] = 0.1  # none on biases and norms
    clip: Annotated[float, Field(ge=0)] = 1.0  # global gradient norm; 0: never clipped
    beta1: Decay = 0.9
    beta2: Decay = 0.95
    epsilon: Annotated[float, Field(ge=1e-30)] = 1e-8  # a value that fp32 rounds to 0 would divide 0 by 0
    # steps under plan.layout, after which training resumes in the layout that the planner finds fastest on `machine`;
    # 0: it keeps its layout
    fastest_after: NotNegative = 0
    checkpoint_every: Positive = 50  # steps; the last step is always saved
    keep_last: Positive = 3  # checkpoints kept besides those of `keep_every`
    keep_every: NotNegative = 0  # steps whose checkpoints are never deleted; 0: none
    milestones: Literal["none", "pythia"] = "none"  # pythia: also save and keep 0, 1, 2, 4 … 512, every 1000th
    save: Literal["background", "waiting"] = "background"  # whether training continues while a copy is written
    save_failures: Positive = 3  # consecutive failed saves after which training stops
    start_from: str | None = None  # a checkpoint that a new run starts from; None: weights initialized by the seed
    # weights: at step 0; state: after the checkpoint's steps, with its moments and place in the data
    start_with: Literal["weights", "state"] = "weights"
    validate_every: Positive = 50  # steps; the last step is always validated
    evaluation: Examination = Examination()
    validation_samples: Positive = 128  # sequences; fewer, with a warning, if the validation split has fewer
    restarts: NotNegative = 2  # of a failed job from the same checkpoint; a newer checkpoint renews them
    supervision: Supervision = Supervision()
    spikes: SpikesConfig = SpikesConfig()
    profile: ProfileConfig = ProfileConfig()
