"""Schemas of each stage's results. Additional fields are kept; missing or invalid ones are errors."""

from functools import cache
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

Number = float | None  # null represents a non-finite number


class Result(BaseModel):
    """A part of a stage's results."""

    model_config = ConfigDict(extra="allow")


class FunnelStep(Result):
    step: str
    documents: int
    bytes: int
    dropped: dict[str, int] = {}


class Planted(Result):
    planted: int
    caught: int


class Honest(Result):
    documents: int
    lost: int


class CorpusStatistics(Result):
    quantiles: list[float] = []
    figures: dict[str, list[Number]] = {}
    lengths: dict[str, list[int]] = {}
    rejected: dict[str, dict[str, int]] = {}
    similarities: list[int] = []


class Extraction(Result):
    pages: int | None = None
    word_f1: Number = None
    run_f1: Number = None
    mb_per_cpu_second: Number = None
    missing: str | None = None


class RankMemory(Result):
    rank: int
    coordinate: dict[str, int] = {}
    categories: dict[str, int | float] = {}
    predicted: dict[str, int | float] = {}


class RankPhases(Result):
    rank: int
    coordinate: dict[str, int] = {}
    seconds: dict[str, float] = {}


class Summary(Result):
    validation_loss: Number = None
    unigram_entropy: Number = None
    layout: dict[str, Any] = {}
    schedule: str | None = None
    steps: int | None = None
    tokens: int | None = None
    parameters: int | None = None
    memory: list[RankMemory] = []
    memory_layout: dict[str, Any] = {}  # in which memory and phases were measured
    phases: list[RankPhases] = []
    finished: bool = True
    steps_planned: int | None = None  # planned steps of an unfinished training
    device: str | None = None  # "cpu", or the name of a GPU
    hosts: int | None = None
    precision: str | None = None


class Begun(Result):
    plan: dict[str, Any]
    training: dict[str, Any]


class Load(Result):
    largest: Number = None
    entropy: Number = None
    dropped: int | None = None


class Metric(Result):
    step: int
    tokens: Number = None
    loss: Number = None
    lr: Number = None
    validation_loss: Number = None
    sequences: int | None = None
    seconds: Number = None
    joules: Number = None
    experts: dict[str, Load] | None = None


class Span(Result):
    pipeline_rank: int
    action: str
    start: float
    end: float


class ComparedLoss(Result):
    step: int
    unbroken: Number
    resumed: Number


class Proof(Result):
    max_loss_difference: Number
    tolerance: Number
    why: str = ""
    layouts: list[dict[str, Any]] = []
    killed: dict[str, Any] = {}
    resumed_from: int | None = None
    losses: list[ComparedLoss] = []


class Score(Result):
    accuracy: Annotated[float, Field(ge=0, le=1)]
    interval: tuple[float, float] | None = None
    n: Annotated[int, Field(ge=0)] | None = None
    chance: Number = None
    unigram: Number = None
    normalisation: str | None = None
    nats_per_byte: Number = None
    nats_per_byte_interval: tuple[float, float] | None = None
    unigram_nats_per_byte: Number = None
    truncated_fraction: Number = None


class Evaluation(Result):
    tasks: dict[str, dict[str, Score]] = {}


class Answers(Result):
    n: Annotated[int, Field(ge=0)]
    accuracy: Annotated[float, Field(ge=0, le=1)]
    interval: tuple[float, float]
    nats_per_token: Number


class TaskScore(Score):
    published: Number = None
    gpt3: Number = None
    truncated: int | None = None
    by_group: dict[str, dict[str, dict[str, Any]]] = {}
    contamination: dict[str, Any] | None = None


class AskedMoment(Result):
    step: int
    tokens: int
    tasks: dict[str, dict[str, Score]]


class Tasks(Result):
    tasks: dict[str, dict[str, TaskScore]]
    skipped: dict[str, str] = {}
    series: list[AskedMoment] = []


class Incontext(Result):
    task: str
    models: list[dict[str, Any]]


class Effect(Result):
    measure: str
    of: str
    estimate: float
    unit: str = ""
    interval: tuple[float, float] | None = None
    effect_size: Number = None
    p_holm: float
    n: int


class Unmeasured(Result):
    measure: str
    of: str
    n: int


class CountedWord(Result):
    word: str
    count: int


class SidedWord(CountedWord):
    log_odds: float
    interval: tuple[float, float] | None = None
    p_holm: float


class GroupWords(Result):
    frequent: list[CountedWord] = []
    one_sided: list[SidedWord] = []


class GroupSentiment(Result):
    mean: Number = None
    interval: tuple[float, float] | None = None


class Sentiment(Result):
    axes: dict[str, dict[str, GroupSentiment]] = {}


class BiasMoment(Result):
    step: int
    tokens: int
    effects: list[Effect]


class BiasSeries(Result):
    checkpoints: list[BiasMoment]


class Bias(Result):
    sentiment: Sentiment | None = None
    variants: dict[str, dict[str, Any]] = {}
    occupations: list[dict[str, Any]] = []
    effects: list[Effect] = []
    not_measured: list[Unmeasured] = []
    adjectives: dict[str, dict[str, GroupWords]] = {}


class Sample(Result):
    prompt: str
    continuation: str


class Plan(Result):
    lines: list[str] = []
    spans: list[Span] = []
    memory: list[RankMemory] = []


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)  # building an adapter costs much more than checking a record with it


def checked(kind: Any, value: Any, *within: int | str) -> Any:
    """Validate `value` and return it as plain data with defaults filled in.

    within: the location of the value in its file. Raises ValueError, which names the first invalid field.
    """
    adapter = _adapter(kind)
    try:
        return adapter.dump_python(adapter.validate_python(value))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, (*within, *first["loc"]))) or "the file"
        raise ValueError(f"{where}: {first['msg'].lower()}, found {str(first.get('input'))[:60]!r}") from None
