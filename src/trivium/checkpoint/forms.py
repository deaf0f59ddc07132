"""The form of a manifest: a right hash says only that it was written so, not that its values are of the right kind."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field

from trivium.config import Config, NotNegative, Positive


class _Form(Config):
    """What a manifest says: fields of later versions may stand beside those that are read."""

    model_config = ConfigDict(extra="allow")
    remedy: ClassVar[str] = "every manifest has it"


class FileForm(_Form):
    """A file of a checkpoint."""

    sha256: str
    bytes: NotNegative


class PieceForm(_Form):
    """A box of a tensor, and where it lies."""

    file: str
    key: str
    start: tuple[NotNegative, ...]
    shape: tuple[NotNegative, ...]


class TensorForm(_Form):
    """An unsplit tensor."""

    dtype: Literal["F64", "F32", "BF16", "F16", "I64"]
    shape: tuple[NotNegative, ...]
    pieces: tuple[PieceForm, ...]


class LayoutForm(_Form):
    """The degrees that a listing shows."""

    tensor: Positive = 1
    pipeline: Positive = 1
    data: Positive = 1
    context: Positive = 1
    chunks: Positive = 1


class PrecisionForm(_Form):
    """The dtype that a listing shows."""

    weights: str | None = None


class PlanForm(_Form):
    """What a listing shows of a plan; `Checkpoint.plan` checks the rest."""

    layout: LayoutForm | None = None
    precision: PrecisionForm | None = None
    model: dict[str, Any] | None = None
    batch: dict[str, Any] | None = None


class DataForm(_Form):
    """What a checkpoint's tokens were."""

    tokenizer_sha256: str | None = None
    files: dict[str, Any] | None = None


class ImportForm(_Form):
    """The Hugging Face folder that weights came from."""

    marks: dict[str, Any] | None = None


class RewindForm(_Form):
    """Places in the order of samples that a rewind left out."""

    gaps: tuple[tuple[NotNegative, NotNegative], ...]


class SpikesForm(_Form):
    """The history of a spike watch."""

    losses: tuple[float, ...] = ()
    norms: tuple[float, ...] = ()
    in_a_row: NotNegative = 0


class LossScaleForm(_Form):
    """A dynamic loss scale."""

    value: float
    finite_steps: NotNegative


class ManifestForm(_Form):
    """A manifest; training adds what is not required."""

    format: str
    sha256: str
    step: NotNegative
    tensors: Annotated[dict[str, TensorForm], Field(min_length=1)]
    files: dict[str, FileForm]
    plan: PlanForm | None = None
    data: DataForm = DataForm()
    imported_from: ImportForm = ImportForm()
    left_out: tuple[RewindForm, ...] = ()
    training: dict[str, Any] | None = None
    tokens_seen: NotNegative = 0
    samples: NotNegative = 0
    updates: NotNegative = 0
    spikes: SpikesForm | None = None
    loss_scale: LossScaleForm | None = None
