"""Sections 3.1 and 3.2 of the paper: what the model reads, and by which recipe."""

from trivium.config import build, read_preset
from trivium.corpus.config import CurateConfig
from trivium.plan.plan import Plan
from trivium.reproduction.figure import Figure
from trivium.reproduction.system import PRESET, SHOW
from trivium.tokens.recipe import contents_after, load_recipe

RECIPE = "mt-nlg"
BLEND = "trivium corpus blend mt-nlg"
EXPLAIN = "trivium config explain curate"


def blend_figures() -> list[Figure]:
    """Table 2: the tokens of the sources, and how often each is read in 270 billion tokens."""
    plan, recipe = build(Plan, read_preset(PRESET)["plan"]), load_recipe(RECIPE)
    there = sum(row.tokens for row in recipe.sources.values())
    read = contents_after(int(recipe.tokens_trained), recipe, sequence=plan.model.sequence)
    return [
        Figure("3.1", "sources", "15", len(recipe.sources), command=BLEND),
        Figure("3.1", "tokens of all sources, billions", "339", there / 1e9, command=BLEND),
        *(
            Figure("3.1", f"epochs of {source}", str(row.epochs), read[source].epochs, command=BLEND)
            for source, row in recipe.sources.items()
            if row.epochs is not None
        ),
    ]


def rule_figures() -> list[Figure]:
    """Section 3.1: the thresholds of curation, and ours unless they are set otherwise."""
    curate = CurateConfig()
    wider = "candidates are verified here, and wider bands miss fewer (docs/negative-results.md)"
    cut, fuzzy = curate.decontamination, curate.dedup
    rows: list[tuple[str, str, float, str, str, str]] = [
        (
            "least length of a document",
            "512",
            curate.quality.characters,
            "characters",
            "quality.characters",
            "",
        ),
        ("words of the classifier's n-grams", "2", curate.classifier.ngram, "", "classifier.ngram", ""),
        (
            "Pareto exponent of the sampling by score",
            "3",
            curate.classifier.alpha,
            "",
            "classifier.alpha",
            "",
        ),
        ("Jaccard similarity of near duplicates", "0.8", fuzzy.threshold, "", "dedup.threshold", ""),
        ("MinHash bands", "20", fuzzy.bands, "", "dedup.bands", wider),
        ("MinHash rows of a band", "13", fuzzy.rows, "", "dedup.rows", wider),
        ("words of an n-gram of a task", "13", cut.ngram, "", "decontamination.ngram", ""),
        ("cut on each side of it", "200", cut.margin, "characters", "decontamination.margin", ""),
        ("shortest piece that stays", "200", cut.piece, "characters", "decontamination.piece", ""),
        ("most pieces of a document", "10", cut.pieces, "", "decontamination.pieces", ""),
    ]
    return [
        Figure("3.1", what, paper, ours, unit, f"{EXPLAIN}.{field}", "setting", note=note)
        for what, paper, ours, unit, field, note in rows
    ]


def recipe_figures() -> list[Figure]:
    """Section 3.2: what follows from the preset's plan."""
    tree = read_preset(PRESET)
    plan, training = build(Plan, tree["plan"]), tree["training"]
    full = plan.batch.segments[-1]
    tokens = plan.tokens(plan.batch.at(training["steps"]).first_sample)
    by_rule = "sqrt(1 / (3 hidden))"
    return [
        Figure(
            "3.2",
            "standard deviation of the first weights, thousandths",
            "4.0",
            1e3 * plan.model.std,
            command=SHOW,
            note=by_rule,
        ),
        Figure(
            "3.2",
            "tokens while the batch grows, billions",
            "12",
            plan.tokens(full.first_sample) / 1e9,
            command=SHOW,
        ),
        Figure("3.2", "sequences of a full batch", "1920", full.sequences, command=SHOW),
        Figure("3.2", "tokens trained on, billions", "270", tokens / 1e9, command=SHOW),
    ]
