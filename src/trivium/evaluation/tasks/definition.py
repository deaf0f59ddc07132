"""The definition of a published benchmark: rows, prompts, scoring, and the published results."""

from collections.abc import Collection, Mapping
from typing import Annotated, Any, ClassVar, Literal

import yaml
from pydantic import Field

from trivium.config import Config, build, shipped, shipped_names
from trivium.errors import ConfigError, nearest
from trivium.evaluation.tasks.task import Normalisation, Scoring

GROUP = "mt-nlg"
FOLDER = "evaluation/tasks/mt_nlg"  # inside the package
Wording = Literal["paper", "harness"]
Shots = int | Literal["few"]
ORDER = ("lambada", "race_h", "boolq", "piqa", "hellaswag", "winogrande")  # MT-NLG, section 4, then inference tasks


class Files(Config):
    """Patterns of local files under --data; the first pattern that matches is read."""

    asked: tuple[str, ...]
    shots: tuple[str, ...] = ()


class Hub(Config):
    """The path and splits of a benchmark on the Hugging Face Hub."""

    path: str
    name: str | None = None
    asked: str
    shots: str | None = None


class Prompts(Config):
    """Formatting of a row as a prompt.

    among: the prompt when there are shots, if it differs. normalisation: that of the headline accuracy.
    """

    prompt: str
    among: str | None = None
    normalisation: Normalisation | None = None


class Definition(Config):
    """A benchmark. `published` and `gpt3`: accuracy in percent by number of shots (MT-NLG, table in section 4)."""

    remedy: ClassVar[str] = "give it in the file"

    name: str
    version: Annotated[int, Field(ge=1)]
    reader: Literal["fields", "hans", "wic", "lambada", "race", "hellaswag", "winogrande"]
    data: Files
    hub: Hub
    scoring: Scoring = "likelihood"
    normalisation: Normalisation = "token"
    unconditional: str | None = None
    choices: tuple[str, ...] = ()
    answer: str | None = None  # field with the correct choice
    answers: Mapping[str, int] = Field(default_factory=dict)  # other spellings of the answer in some files
    paper: Prompts
    harness: Prompts
    groups: tuple[tuple[str, ...], ...] = ()  # fields by whose values accuracy is also reported
    few: Annotated[int, Field(ge=1)]  # number of shots that "few" stands for
    published: Mapping[str, float] = Field(default_factory=dict)
    gpt3: Mapping[str, float] = Field(default_factory=dict)
    overlap: str  # text to search for in the corpus, as in GPT-3

    def prompts(self, wording: Wording) -> Prompts:
        return self.paper if wording == "paper" else self.harness

    def shots(self, wanted: Shots) -> int:
        """Return a number of shots; "few" is the number used in the paper."""
        return self.few if wanted == "few" else wanted


def names() -> list[str]:
    """Return the names of all benchmarks, in the paper's order."""
    return [*ORDER, *(n for n in shipped_names(FOLDER) if n not in ORDER)]


def definition(name: str) -> Definition:
    """Return a benchmark by its name. Raises ConfigError if there is none."""
    _refuse_unknown(name, names(), "--task")
    tree: Any = yaml.safe_load(shipped(f"{FOLDER}/{name}.yaml").read_text(encoding="utf-8"))
    return build(Definition, {"name": name, **tree})


def chosen(wanted: str, field: str = "--tasks") -> dict[str, bool]:
    """Parse comma-separated names into {benchmark: whether it was named itself and not only by its group}.

    Raises ConfigError, which names `field`, for an unknown name.
    """
    found: dict[str, bool] = {}
    for name in filter(None, (part.strip() for part in wanted.split(","))):
        if name == GROUP:
            found = {**dict.fromkeys(names(), False), **found}
        else:
            _refuse_unknown(name, [GROUP, *names()], field)
            found[name] = True
    if not found:
        raise ConfigError(f"{field} {wanted!r} names no task; write {GROUP} or some of {', '.join(names())}")
    return found


def _refuse_unknown(name: str, known: Collection[str], field: str) -> None:
    if name not in known:
        raise ConfigError(f"{field} {name}: there is no such task; {nearest(name, known)}")
