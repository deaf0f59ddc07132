"""All filters of single documents by name, so that a config can list them in the order in which they judge."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

from trivium.corpus.clean.c4 import c4_step
from trivium.corpus.clean.extract import extract_step
from trivium.corpus.clean.language import language_step
from trivium.corpus.clean.privacy import privacy_step
from trivium.corpus.clean.quality import fineweb_step, gopher_step, quality_step
from trivium.corpus.clean.repetition import repetition_step
from trivium.corpus.clean.tidy import NotTidied, tidy
from trivium.corpus.config import CurateConfig, ExtractConfig
from trivium.corpus.document import Document
from trivium.corpus.select.classifier import trained_step
from trivium.corpus.steps import Drop, Keep, Step, Verdict
from trivium.errors import ConfigError, nearest


def clean_step(config: ExtractConfig = ExtractConfig()) -> Step:
    """Return the step that makes text plain (`clean.tidy`), and drops what is empty then or cannot be tidied."""

    def judge(document: Document) -> Verdict:
        try:
            text = tidy(document.text, longest_run=config.longest_run)
        except NotTidied as error:
            return Drop(str(error), error.remedy)
        return Keep(replace(document, text=text)) if text else Drop("empty")

    return Step("clean", judge)


FILTERS: Mapping[str, Callable[[CurateConfig, int], Step]] = MappingProxyType(
    {
        "extract": lambda config, _: extract_step(config.extract),
        "clean": lambda config, _: clean_step(config.extract),
        "language": lambda config, _: language_step(config.language),
        "quality": lambda config, _: quality_step(config.quality),
        "repetition": lambda config, _: repetition_step(config.repetition),
        "gopher": lambda config, _: gopher_step(config.quality),
        "c4": lambda config, _: c4_step(config.c4),
        "fineweb": lambda config, _: fineweb_step(config.fineweb),
        "privacy": lambda config, _: privacy_step(config.privacy),
        "classifier": lambda config, seed: trained_step(config.classifier, seed=seed),
    }
)


def named_steps(config: CurateConfig, *, seed: int) -> list[Step]:
    """Return the steps that `config.filters` names, in its order; ConfigError for a name that is none."""
    for name in config.filters:
        if name not in FILTERS:
            raise ConfigError(f"curate.filters = '{name}': no such filter; {nearest(name, FILTERS)}")
    return [FILTERS[name](config, seed) for name in config.filters]
