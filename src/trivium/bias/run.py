"""Run the configured bias analyses on a model, or on each checkpoint of a training run."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from trivium.bias.adjectives import Text, adjectives, sample_texts
from trivium.bias.association import association
from trivium.bias.config import TEXTBLOB, BiasConfig
from trivium.bias.coreference import coreference
from trivium.bias.effects import effects, not_measured
from trivium.bias.prompts import prompts
from trivium.bias.sentiment import open_lexicon, sentiment
from trivium.bias.sentiwordnet import read_sentiwordnet
from trivium.bias.taggers import Tagger, lexicon_tagger, textblob_tagger
from trivium.errors import ConfigError
from trivium.evaluation.requests import Scorer
from trivium.progress import Progress, silent

FORMAT = "trivium-bias-1"
SERIES_FORMAT = "trivium-bias-series-1"


class Measured(NamedTuple):
    """The results as stored, and the generated texts."""

    results: dict[str, Any]
    texts: list[Text]


class Moment(NamedTuple):
    """A checkpoint of a training run."""

    step: int
    tokens: int
    scorer: Scorer


def measure(
    config: BiasConfig, scorer: Scorer, *, seed: int, tagger: Tagger | None = None, progress: Progress = silent
) -> Measured:
    """Run all configured analyses. tagger: replaces the configured one.

    Raises MachineError if a required library is missing, and DataError if data is missing or damaged, both before
    any request to the model.
    """
    asked = config.cooccurrence
    writes = {"adjectives", "sentiment"} & set(config.analyses)
    if writes and tagger is None:
        tagger = open_tagger(config)
    lexicon = open_lexicon(asked.lexicon, adverbs=asked.adverbs) if "sentiment" in writes else None
    results: dict[str, Any] = {"format": FORMAT}
    if {"winogender", "winobias"} & set(config.analyses):
        results["coreference"] = coreference(config, scorer, seed=seed, progress=progress)
    if "association" in config.analyses:
        results |= association(config, scorer, seed=seed, progress=progress)
    texts: list[Text] = []
    if tagger is not None and writes:
        openings = prompts(asked.axes)
        texts = sample_texts(config, scorer, tagger, openings, seed=seed, progress=progress)
        results["prompts"] = [p._asdict() for p in openings]
    if "adjectives" in writes:
        results["adjectives"] = adjectives(config, texts, seed=seed)
    if lexicon is not None:
        results["sentiment"] = sentiment(config, texts, lexicon, seed=seed)
    found = {"effects": effects(results), "not_measured": not_measured(results)}
    return Measured(results | found, texts)


def series(
    config: BiasConfig, moments: Iterable[Moment], *, seed: int, progress: Progress = silent
) -> Iterator[dict[str, Any]]:
    """Yield the effects at each checkpoint: {format, checkpoints: [{step, tokens, effects}]}.

    The full tree is yielded after each checkpoint, so that a later failure loses no result.
    """
    found: list[dict[str, Any]] = []
    for moment in moments:
        measured = measure(config, moment.scorer, seed=seed, progress=progress)
        found.append({"step": moment.step, "tokens": moment.tokens, "effects": measured.results["effects"]})
        yield {"format": SERIES_FORMAT, "checkpoints": [*found]}


def open_tagger(config: BiasConfig) -> Tagger:
    """Open the configured tagger. Raises ConfigError if tagger and lexicon do not fit together."""
    asked = config.cooccurrence
    if asked.tagger == "textblob":
        return textblob_tagger(adverbs=asked.adverbs)
    if asked.lexicon == TEXTBLOB:
        raise ConfigError(
            "bias.cooccurrence.tagger is 'lexicon', which finds the words of a SentiWordNet file, and "
            f"bias.cooccurrence.lexicon is '{TEXTBLOB}'; give the file's path there"
        )
    return lexicon_tagger(read_sentiwordnet(Path(asked.lexicon)), adverbs=asked.adverbs)
