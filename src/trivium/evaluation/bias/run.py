"""Run the configured bias analyses on a model, or on each checkpoint of a training run."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from trivium.evaluation.bias.association import association
from trivium.evaluation.bias.config import BiasConfig
from trivium.evaluation.bias.cooccurrence import Text, adjectives, prompts, sample_texts, sentiment
from trivium.evaluation.bias.coreference import coreference
from trivium.evaluation.bias.lexicons import Tagger, open_lexicon, open_tagger
from trivium.evaluation.bias.significance import holm
from trivium.evaluation.requests import Scorer
from trivium.progress import Progress, silent
from trivium.units import shots_text

FORMAT = "trivium-bias-1"
SERIES_FORMAT = "trivium-bias-series-1"
Tree = Mapping[str, Any]


class Measured(NamedTuple):
    """The results as stored, and the generated texts."""

    results: dict[str, Any]
    texts: list[Text]


class Moment(NamedTuple):
    """A checkpoint of a training run. model: its description, with `step`, `tokens` and `sha256`."""

    model: Tree
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
    if writes:
        tagger = tagger or open_tagger(asked)
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
    return Measured(results | effects(results), texts)


def series(
    config: BiasConfig, moments: Iterable[Moment], *, seed: int, progress: Progress = silent
) -> Iterator[dict[str, Any]]:
    """Yield the effects at each checkpoint: {format, checkpoints: [{**model, effects}]}.

    The full tree is yielded after each checkpoint, so that a later failure loses no result.
    """
    found: list[dict[str, Any]] = []
    for moment in moments:
        measured = measure(config, moment.scorer, seed=seed, progress=progress)
        found.append({**moment.model, "effects": measured.results["effects"]})
        yield {"format": SERIES_FORMAT, "checkpoints": [*found]}


def effects(results: Tree) -> dict[str, list[dict[str, Any]]]:
    """Return {effects, not_measured}.

    effects: one row per measured effect with p-values corrected for their number (Holm 1979): {measure, of, estimate,
    unit, interval, effect_size, p, p_holm, n}. not_measured: {measure, of, n} of each effect that could not be
    measured, because one side has no counted word.
    """
    rows = list(_effects(results))
    measured = [row for row in rows if row["estimate"] is not None]
    corrected = holm([row["p"] for row in measured])
    return {
        "effects": [row | {"p_holm": p} for row, p in zip(measured, corrected, strict=True)],
        "not_measured": [{k: row[k] for k in ("measure", "of", "n")} for row in rows if row["estimate"] is None],
    }


def _effects(results: Tree) -> Iterator[dict[str, Any]]:
    for variant, found in results.get("variants", {}).items():
        yield _row("association", variant, found, found["mean_log_ratio"], "interval", "nats", found["n"])
    for found in results.get("differences", ()):
        of = " less ".join(found["variants"])
        yield _row("association", of, found, found["mean"], "interval", "nats", found["n"])
    for of, found in _tested(results.get("adjectives", {})):
        # A small number of words causes divergence by chance.
        excess = None if found["divergence"] is None else found["divergence"] - found["expected"]
        yield _row("adjectives", of, found, excess, "", "bits above chance", found["texts"])
    for of, found in _tested(results.get("sentiment", {}).get("axes", {})):
        unit = "of -100 to 100"
        yield _row("sentiment", of, found, found["difference"], "difference_interval", unit, found["texts"])
    for task, by_shots in results.get("coreference", {}).items():
        for shots, found in by_shots.items():
            of = f"{' less '.join(found['compared'])}, {shots_text(shots)}"
            n = sum(side["n"] for side in found["sides"].values())
            yield _row(task, of, found, found["margin"], "margin_interval", "nats per token", n)


def _tested(axes: Tree) -> Iterator[tuple[str, Tree]]:
    """Yield the groups to test. With two groups, both tests are the same, so only the first is tested."""
    for axis, groups in axes.items():
        names = list(groups)
        yield from ((f"{axis}: {name}", groups[name]) for name in (names[:1] if len(names) == 2 else names))


def _row(
    measure: str, of: str, found: Tree, estimate: float | None, interval: str, unit: str, n: int
) -> dict[str, Any]:
    return {
        "measure": measure,
        "of": of,
        "estimate": estimate,
        "unit": unit,
        "interval": found.get(interval),
        "effect_size": found.get("effect_size"),
        "p": found["permutation_p"],
        "n": n,
    }
