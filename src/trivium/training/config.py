"""The recipe: how long, how fast, how often (MT-NLG, section 3.2). No torch here."""

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
    """Whether a step is one of every so many; if `every` is 0, none is."""
    return every > 0 and step % every == 0


class Supervision(Config):
    """How faults are found and what follows; none of it changes what is computed."""

    restart_seconds: Seconds = 1.0  # before the first restart; doubles with each, up to a minute
    preemption_seconds: Seconds = 100.0  # that a job has to save in, when a signal asks it to end
    hang_seconds: Annotated[float, Field(gt=0)] = (
        30.0  # least time in one step (or 3 x the 99th percentile of steps) that counts as hanging
    )
    stall_seconds: Annotated[float, Field(gt=0)] = (
        600.0  # the same in the first step, and while starting, ending a trace, validating, evaluating or saving
    )
    timeout_seconds: Annotated[float, Field(gt=0)] = (
        120.0  # of a collective whose other ranks do not come; where they may compile, stall_seconds if that is more
    )
    host_seconds: Annotated[float, Field(gt=0)] = (
        3600.0  # that the hosts of a job wait for one that is gone to come back; job files for torchrun and Kubernetes
    )
    replicas_every: NotNegative = 100  # steps; replicas are compared, and before every save; 0: only then
    slow_every: NotNegative = 50  # steps; ranks compare the time they worked; 0: never
    slow_factor: Annotated[float, Field(gt=1)] = 1.5  # a rank that works so much longer than its peers is told


class SpikesConfig(Config):
    """What is a spike, and what is done then; a step that spikes never changes a weight."""

    # stop: end with an error; skip: do without the step; rewind: back to a checkpoint, and on without its samples
    policy: Literal["stop", "skip", "rewind"] = "stop"
    deviations: Annotated[float, Field(ge=0)] = 0.0  # above the median; 0: only what is not finite is a spike
    window: Annotated[int, Field(ge=4, le=MOST)] = 128  # steps whose loss and gradient norm are compared with
    batches: Positive = 1  # rewind: so many are left out, the last of them the one that spiked
    limit: Positive = 10  # spikes in a row, or rewinds of one step; then the run stops

    @property
    def reach(self) -> int:
        """How many batches a rewind leaves out; where none may come, those of a step that is not done yet."""
        return self.batches if self.policy == "rewind" else 1


class Examination(Config):
    """Published tasks that the model is asked while it trains; nothing of it changes what is trained."""

    every: NotNegative = 0  # steps; the last step is then asked too; 0: never, whatever the others say
    tasks: str = "mt-nlg"  # names by commas, as `trivium evaluate --tasks` takes them
    data: str | None = None  # folder of JSON lines, a folder a task; None: from the Hub
    shots: Annotated[tuple[NotNegative | Literal["few"], ...], Field(min_length=1)] = (0,)  # before each question
    limit: Positive = 100  # questions of each task, chosen by the seed of the run


class ProfileConfig(Config):
    """Traces of single steps by torch.profiler; nothing of it changes what is computed."""

    steps: tuple[Positive, ...] = ()  # counted from 1; each has a file of its own; none: no trace
    on_ranks: tuple[NotNegative, ...] | None = (0,)  # that keep one; None: all
    memory: bool = False  # with every allocation, as curves

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
    # of the peak: the final rate, at the end of the decay and after it; constant has none
    lr_final_fraction: Fraction = 0.1
    warmup_tokens: NotNegative = 0  # linear from 0
    # of the learning rate after the warm-up. cosine, linear: to the final rate at the end of the decay; constant: none;
    # inverse_sqrt: by the root of warmup_tokens / tokens, to the final rate; wsd (warm-up, stable, decay): none until
    # `final_decay_tokens` before the end
    decay: DecayName = "cosine"
    decay_tokens: NotNegative = 0  # where the decay ends, counted from token 0; 0: at the last step
    final_decay_tokens: NotNegative = 0  # wsd: tokens of the final decay, which ends where `decay_tokens` says
    final_decay_shape: FinalDecayShape = "1-sqrt"  # wsd: of what is above the final rate (arXiv 2405.18392)
    weight_decay: Annotated[float, Field(ge=0)] = 0.1  # none on biases and norms
    clip: Annotated[float, Field(ge=0)] = 1.0  # global gradient norm; 0: never clipped
    beta1: Decay = 0.9
    beta2: Decay = 0.95
    epsilon: Annotated[float, Field(ge=1e-30)] = 1e-8  # what fp32 takes for 0 would divide 0 by 0
    checkpoint_every: Positive = 50  # steps; the last step is always saved
    keep_last: Positive = 3  # checkpoints kept besides those that `keep_every` spares
    keep_every: NotNegative = 0  # steps; 0: none is spared
    milestones: Literal["none", "pythia"] = "none"  # pythia: also save and keep 0, 1, 2, 4 … 512, every 1000th
    save: Literal["background", "waiting"] = "background"  # does training go on while a copy is written
    save_failures: Positive = 3  # saves that may fail in a row before the run stops
    start_from: str | None = None  # a checkpoint that a new run begins with; None: weights drawn by the seed
    # weights: at step 0; state: after the checkpoint's steps, with its moments and place in the data
    start_with: Literal["weights", "state"] = "weights"
    validate_every: Positive = 50  # steps; the last step is always validated
    evaluation: Examination = Examination()
    validation_samples: Positive = 128  # sequences; fewer where the validation split has fewer, and then told
    restarts: NotNegative = 2  # times a failed job is restarted from the same checkpoint; a newer one renews them
    supervision: Supervision = Supervision()
    spikes: SpikesConfig = SpikesConfig()
    profile: ProfileConfig = ProfileConfig()
