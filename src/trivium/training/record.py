"""What a training writes down about itself besides metrics: what it is, and which samples it passes over. No torch.

run.json       plan, training config, seed, and where its tokens lie
left_out.json  every rewind: its step, its cause, and the places in the order of samples that are left out
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from trivium.config import build, to_tree
from trivium.errors import DataError
from trivium.plan.plan import Plan
from trivium.provenance import write_json
from trivium.tokens.left_out import LeftOut
from trivium.tokens.samples import TokenDataset
from trivium.training.config import TrainingConfig
from trivium.training.metrics import METRICS, records
from trivium.untrusted import read_json

RUN, LEFT_OUT = "run.json", "left_out.json"
CURATED = "curated"  # in a run directory, as tokens and training are
Entry = dict[str, Any]  # step, cause, gaps: [[first, stop], …]


@dataclass(frozen=True)
class Record:
    """A training as it was: enough to say what any of its steps consumed, or to do a step again."""

    folder: Path
    tokens: Path
    plan: Plan
    training: TrainingConfig
    seed: int
    entries: tuple[Entry, ...]

    @cached_property
    def data(self) -> TokenDataset:
        """Its training samples, without those left out."""
        whole = TokenDataset.open(self.tokens, "train", sequence=self.plan.model.sequence, seed=self.seed)
        return whole.leaving_out(left_out_of(self.entries))

    @property
    def curated(self) -> Path | None:
        """The curation that its tokens were made of: beside them, or, where they were moved away from it, beside the
        training; None where neither has one."""
        beside = (self.tokens.absolute().parent / CURATED, self.folder.parent / CURATED)
        return next((folder for folder in beside if folder.is_dir()), None)

    def logged(self) -> Iterator[dict[str, Any]]:
        """Yield what was logged of each step, in the order of the file. Steps are numbered from 1."""
        return (m for m in records(self.folder / METRICS) if "step" in m and "sequences" in m)

    def logged_of(self, step: int) -> dict[str, Any]:
        """Return what was logged of one step, or nothing."""
        return next((m for m in self.logged() if m["step"] == step), {})

    @cached_property
    def last_logged(self) -> dict[str, Any]:
        """What was logged of the last step, or nothing."""
        return max(self.logged(), key=lambda m: m["step"], default={})

    @property
    def steps_done(self) -> int:
        """The last step that was logged, or 0."""
        return int(self.last_logged.get("step", 0))


def write_record(record: Record) -> None:
    """Write run.json; the entries have a file of their own."""
    tree = {
        "plan": to_tree(record.plan),
        "training": to_tree(record.training),
        "seed": record.seed,
        "tokens": str(record.tokens.resolve()),
    }
    write_json(record.folder / RUN, tree)


def read_record(folder: Path, tokens: Path | None = None) -> Record:
    """The training in `folder`; DataError when there is none. tokens: where its shards lie now, if they moved."""
    path = folder / RUN
    try:
        tree = read_json(path)
        plan, training = build(Plan, tree["plan"]), build(TrainingConfig, tree["training"])
        there, seed = Path(tree["tokens"]), int(tree["seed"])
    except FileNotFoundError:
        raise DataError(f"{path} is missing: no training began there; name a run directory") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} is damaged ({error!r}); run `trivium train` again to write it") from None
    beside = folder.parent / "tokens"
    given = tokens or (there if there.is_dir() else beside)
    return Record(folder, given, plan, training, seed, tuple(entries_of(folder)))


def entries_of(folder: Path) -> list[Entry]:
    """The samples left out so far, rewind by rewind."""
    path = folder / LEFT_OUT
    if not path.is_file():
        return []
    try:
        found: list[Entry] = read_json(path)
        left_out_of(found)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{path} is damaged ({error!r}); without it the order of samples is unknown: restore it, or delete it to "
            f"take it from the newest checkpoint"
        ) from None
    return found


def write_entries(folder: Path, entries: Sequence[Entry]) -> None:
    """Write left_out.json; it is on the disk when this returns."""
    write_json(folder / LEFT_OUT, list(entries))


def left_out_of(entries: Iterable[Entry]) -> LeftOut:
    """All gaps of some entries."""
    return LeftOut((gap[0], gap[1]) for entry in entries for gap in entry["gaps"])


def entry(step: int, cause: str, before: LeftOut, after: LeftOut) -> Entry:
    """An entry for the gaps that came to those there were."""
    old = {place for gap in before.gaps for place in range(*gap)}
    new = LeftOut((p, p + 1) for gap in after.gaps for p in range(*gap) if p not in old)
    return {"step": step, "cause": cause, "gaps": [list(gap) for gap in new.gaps]}
