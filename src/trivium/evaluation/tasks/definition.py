"""A published benchmark as data: which rows, which prompts, which scoring, and what was published with them."""

from collections.abc import Collection, Mapping
from typing import Annotated, Any, ClassVar, Literal

import yaml
from pydantic import Field

from trivium.config import Config, build, shipped, shipped_names
from trivium.errors import ConfigError, nearest
from trivium.evaluation.tasks.task import Normalisation, Scoring

GROUP = "mt-nlg"
FOLDER = "evaluation/tasks/mt_nlg"  # in the package
Wording = Literal["paper", "harness"]
Shots = int | Literal["few"]
ORDER = ("lambada", "race_h", "boolq", "piqa", "hellaswag", "winogrande")  # MT-NLG, section 4, then inference


class Files(Config):
    """Local files of rows under --data, as patterns; the first that matches is read."""

    asked: tuple[str, ...]
    shots: tuple[str, ...] = ()


class Hub(Config):
    """Where the rows are on the Hub of Hugging Face, and in which splits."""

    path: str
    name: str | None = None
    asked: str
    shots: str | None = None


class Prompts(Config):
    """How a row becomes a prompt; `among`: with shots, where that differs. normalisation: of the headline."""

    prompt: str
    among: str | None = None
    normalisation: Normalisation | None = None


class Definition(Config):
    """A benchmark. `published` and `gpt3`: accuracy in percent by number of shots (MT-NLG, table of section 4)."""

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
    answer: str | None = None  # the field that says which choice is right
    answers: Mapping[str, int] = Field(default_factory=dict)  # how some files spell it
    paper: Prompts
    harness: Prompts
    groups: tuple[tuple[str, ...], ...] = ()  # fields whose values accuracy is also given by
    few: Annotated[int, Field(ge=1)]  # shots of "few"
    published: Mapping[str, float] = Field(default_factory=dict)
    gpt3: Mapping[str, float] = Field(default_factory=dict)
    overlap: str  # the text that is looked for in the corpus, as in GPT-3

    def prompts(self, wording: Wording) -> Prompts:
        """The paper's, or the harness's own."""
        return self.paper if wording == "paper" else self.harness

    def shots(self, wanted: Shots) -> int:
        """A number of shots; "few" is as many as the paper took."""
        return self.few if wanted == "few" else wanted


def names() -> list[str]:
    """The benchmarks there are, in the paper's order."""
    return [*ORDER, *(n for n in shipped_names(FOLDER) if n not in ORDER)]


def definition(name: str) -> Definition:
    """A benchmark by its name; ConfigError when there is none."""
    _refuse_unknown(name, names(), "--task")
    tree: Any = yaml.safe_load(shipped(f"{FOLDER}/{name}.yaml").read_text(encoding="utf-8"))
    return build(Definition, {"name": name, **tree})


def chosen(wanted: str, field: str = "--tasks") -> dict[str, bool]:
    """Names by commas -> each benchmark, and whether it was named itself and not only its group. ConfigError, which
    blames `field`, for a name of neither."""
    found: dict[str, bool] = {}
    for name in filter(None, (part.strip() for part in wanted.split(","))):
        if name == GROUP:
            found = {**dict.fromkeys(names(), False), **found}
        else:
            _refuse_unknown(name, [GROUP, *names()], field)
            found[name] = True
    if not found:
        raise ConfigError(f"{field} {wanted!r} names none; write {GROUP} or some of {', '.join(names())}")
    return found


def _refuse_unknown(name: str, known: Collection[str], field: str) -> None:
    if name not in known:
        raise ConfigError(f"{field} {name}: there is no such task; {nearest(name, known)}")
