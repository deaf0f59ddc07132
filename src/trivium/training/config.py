"""The training config: how long, how fast, how often (MT-NLG, section 3.2). No torch here."""

from typing import Annotated, Literal

from pydantic import Field, field_validator

from trivium.config import MAX_COUNT, Config, NotNegative, Positive, Short
from trivium.objectives.config import ObjectiveConfig
from trivium.stores.remote import is_object_store
from trivium.units import listed

Fraction = Annotated[float, Field(ge=0, le=1)]
Decay = Annotated[float, Field(ge=0, lt=1)]  # decay of a running mean, which would never change at 1
Seconds = Annotated[float, Field(ge=0)]
DecayName = Literal["cosine", "linear", "constant", "inverse_sqrt", "wsd"]
FinalDecayShape = Literal["1-sqrt", "linear"]
STEPS_BEFORE_KILL = 2  # that a rank does at least before `trivium prove` kills it, so that a checkpoint is saved


def is_nth(step: int, every: int) -> bool:
    """Whether `step` is a multiple of `every`; never if that is 0."""
    return every > 0 and step % every == 0


class Supervision(Config):
    """Detection and handling of faults, which do not change what is computed."""

    restart_seconds: Seconds = 1.0  # pause before the first restart; it doubles with each, up to a minute
    preemption_seconds: Seconds = 100.0  # time that a job has to save after a signal to end
    # shortest step that counts as hung; 3 x the 99th percentile of steps if that is longer
    hang_seconds: Annotated[float, Field(gt=0)] = 30.0
    # the same for the first step, and while starting, ending a trace, validating, evaluating or saving
    stall_seconds: Annotated[float, Field(gt=0)] = 600.0
    # timeout of a collective; where ranks may compile, stall_seconds if that is longer
    timeout_seconds: Annotated[float, Field(gt=0)] = 120.0
    # time that the hosts of a job wait for a lost host; used in job files for torchrun and Kubernetes, and by --hosts
    host_seconds: Annotated[float, Field(gt=0)] = 3600.0
    # --hosts: time without a sign of a host after which the others continue without it
    lease_seconds: Annotated[float, Field(ge=5)] = 15.0
    join_seconds: Seconds = 30.0  # --hosts: time that the first hosts wait for others before they begin
    replicas_every: NotNegative = (
        100  # steps between comparisons of replicas, which are also compared before every save; 0: none
    )
    slow_every: NotNegative = 50  # steps between comparisons of the ranks' compute time; 0: never
    slow_factor: Annotated[float, Field(gt=1)] = (
        1.5  # a rank counts as slow if it computes this many times longer than its peers
    )


class SpikesConfig(Config):
    """Detection and handling of loss spikes; a step with a spike never changes a weight."""

    # response to a spike. stop: end with an error; skip: omit the step; rewind: go back to a checkpoint and skip the
    # batches up to the spike
    policy: Literal["stop", "skip", "rewind"] = "stop"
    # robust standard deviations above the median that count as a spike; 0: only values that are not finite
    deviations: Annotated[float, Field(ge=0)] = 0.0
    window: Annotated[int, Field(ge=4, le=MAX_COUNT)] = (
        128  # number of recent steps with which loss and gradient norm are compared
    )
    batches: Positive = 1  # batches that a rewind skips; the last of them is the one that spiked
    limit: Positive = 10  # consecutive spikes, or rewinds from one step, after which training stops

    @property
    def reach(self) -> int:
        """The number of batches that a rewind skips; 1 under another policy, for the step in progress."""
        return self.batches if self.policy == "rewind" else 1


class Examination(Config):
    """Evaluation on published tasks during training; it does not change what is trained."""

    every: NotNegative = 0  # steps between evaluations; the model is also evaluated after the last step; 0: never
    tasks: str = "mt-nlg"  # names of tasks separated by commas, as for `trivium evaluate --tasks`
    data: str | None = None  # folder that contains a folder of JSON lines for each task; None: the Hub
    shots: Annotated[tuple[NotNegative | Literal["few"], ...], Field(min_length=1)] = (
        0,
    )  # solved examples before each question
    limit: Positive = 100  # questions of each task, chosen by the seed of the run


class NearConfig(Config):
    """Copies of the state near the ranks, from which a job resumes if they are newer than its checkpoints."""

    # steps between copies to the memory or disk of each host and, with --hosts, of a second host; 0: none
    every: NotNegative = 0
    folder: str = "/dev/shm/trivium"  # folder on each host, of which a reboot may lose the contents


class ProfileConfig(Config):
    """Traces of single steps by torch.profiler; they do not change what is computed."""

    steps: tuple[Positive, ...] = ()  # steps that are traced, counted from 1; each has a separate file
    on_ranks: tuple[NotNegative, ...] | None = (0,)  # ranks that write a trace; None: all
    memory: bool = False  # whether a trace also records every allocation

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

    objective: ObjectiveConfig = ObjectiveConfig()
    steps: Annotated[Positive, Short("steps")] = 200  # number of optimizer steps
    lr: Annotated[float, Field(gt=0), Short("lr")] = 3e-3  # peak learning rate
    # final learning rate as a fraction of the peak; constant has none
    lr_final_fraction: Fraction = 0.1
    warmup_tokens: Annotated[NotNegative, Short("warmup-tokens")] = 0  # tokens of the linear warm-up from 0
    # decay of the learning rate after the warm-up. cosine, linear: to the final rate at the end of the decay;
    # constant: not at all; inverse_sqrt: by the root of warmup_tokens / tokens, to the final rate; wsd (warm-up,
    # stable, decay): not until `final_decay_tokens` before the end
    decay: Annotated[DecayName, Short("decay")] = "cosine"
    decay_tokens: NotNegative = 0  # number of tokens after which the decay ends, warm-up included; 0: at the last step
    final_decay_tokens: NotNegative = 0  # wsd: tokens of the final decay, which ends at decay_tokens
    final_decay_shape: FinalDecayShape = "1-sqrt"  # wsd: shape of the final decay (arXiv 2405.18392)
    # weight decay; biases and norms have none
    weight_decay: Annotated[float, Field(ge=0), Short("weight-decay")] = 0.1
    clip: Annotated[float, Field(ge=0), Short("clip")] = (
        1.0  # global gradient norm to which gradients are clipped; 0: no clipping
    )
    beta1: Decay = 0.9  # AdamW: decay of the mean of gradients
    beta2: Decay = 0.95  # AdamW: decay of the mean of squared gradients
    epsilon: Annotated[float, Field(ge=1e-30)] = 1e-8  # AdamW: added to the root of the mean of squared gradients
    # number of steps under plan.layout, after which training resumes in the layout that the planner finds fastest on
    # `machine`; 0: it keeps its layout
    fastest_after: NotNegative = 0
    # URL (s3://, gs://, hf://) under which checkpoints are saved in place of the run directory, and its records copied
    store: Annotated[str | None, Field(pattern=r"^[a-z0-9]+://[^\s?#@]+$")] = None
    # steps between checkpoints; the last step is always saved
    checkpoint_every: Annotated[Positive, Short("checkpoint-every")] = 50
    keep_last: Positive = 3  # number of latest checkpoints that are kept
    keep_every: NotNegative = 0  # checkpoints of every N-th step are never deleted; 0: none
    # also save and keep step 0, every N-th step and the powers of two below N, for a number N; pythia: N is 1000
    milestones: Literal["none", "pythia"] | Positive = "none"
    save: Literal["background", "waiting"] = "background"  # whether training continues while a copy is written
    save_failures: Positive = 3  # consecutive failed saves after which training stops
    # a checkpoint that a new run starts from; None: weights initialized by the seed
    start_from: Annotated[str | None, Short("start-from")] = None
    # weights: at step 0; state: after the checkpoint's steps, with its moments and place in the data
    start_with: Literal["weights", "state"] = "weights"
    # steps between validations; the last step is always validated
    validate_every: Annotated[Positive, Short("validate-every")] = 50
    evaluation: Examination = Examination()
    validation_samples: Positive = 128  # sequences; fewer, with a warning, if the validation split has fewer
    restarts: NotNegative = 2  # restarts of a failed job from the same checkpoint; a newer checkpoint renews them
    supervision: Supervision = Supervision()
    spikes: SpikesConfig = SpikesConfig()
    near: NearConfig = NearConfig()
    # whether each file of a checkpoint is read again after it was written. by size: if it has at most 1 GiB
    read_back: Literal["always", "never", "by size"] = "by size"
    profile: ProfileConfig = ProfileConfig()

    @field_validator("store")
    @classmethod
    def _is_object_store(cls, url: str | None) -> str | None:
        if url is not None and not is_object_store(url):
            raise ValueError(
                "it must be the URL of an object store, as s3://BUCKET/RUN; to save in a folder, set "
                "training.store=null and name the folder with --out"
            )
        return url
