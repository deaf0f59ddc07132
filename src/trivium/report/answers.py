"""Sections about what the model answers: evaluation, published tasks, in-context learning, bias and samples."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from trivium.report import figures
from trivium.report.parts import Drawn, Row, Section, Table
from trivium.report.verdicts import SIGNIFICANCE_LEVEL, is_tiny, significant_scores
from trivium.report.words import (
    chance_text,
    effect_text,
    level_text,
    number_text,
    percent_range,
    percent_text,
    range_text,
    scores_of,
)
from trivium.units import counted, shots_text

Tree = dict[str, Any]


def _split(tasks: Tree) -> tuple[list[tuple[str, str, Tree]], list[tuple[str, str, Tree]]]:
    """Return the scores that are significantly above chance, and the others."""
    significant = significant_scores(tasks)
    scores = scores_of(tasks)
    better = [score for score in scores if score[:2] in significant]
    return better, [score for score in scores if score[:2] not in significant]


def _gist(better: list[tuple[str, str, Tree]], others: list[tuple[str, str, Tree]]) -> str:
    return f"{len(better)} of {counted(len(better) + len(others), 'score')} significantly above chance"


def evaluation_section(report: Tree) -> Section:
    """Show accuracy and surprise on held-out questions, with the baselines that use no context."""
    tasks = report["evaluation"]["tasks"]
    better, others = _split(tasks)
    scores = [*better, *others]
    surprise = [
        (
            *(task, shots, number_text(s["nats_per_byte"])),
            *(range_text(s["nats_per_byte_interval"], number_text), number_text(s["unigram_nats_per_byte"])),
        )
        for task, shots, s in scores
        if s["nats_per_byte"] is not None
    ]
    interval = level_text([s for *_, s in scores])
    heads = ("task", "shots", "examples", "accuracy", interval, "chance", "token frequencies", "prompts cut")
    surprise_heads = ("task", "shots", "surprise, nats per byte", interval, "token frequencies")
    drawn = []
    if better:
        drawn.append(Drawn("Accuracy on held-out questions", figures.accuracies(better), "picture"))
    if others:
        drawn.append(Drawn("Accuracy on held-out questions", figures.accuracies(others), "not significant"))
    return Section(
        "evaluation",
        "Evaluation",
        gist=_gist(better, others),
        shows="Questions made from documents that were held out of training: how often the model is right, and how "
        "surprising it finds the right answer (lower is better).",
        reading="A score whose interval is above both chance and token frequencies means that the model uses the "
        "context. Surprise shows this earlier than accuracy. A prompt longer than the model's sequence loses its "
        "beginning, and with it solved examples.",
        limits="These tasks are made from the run's own text, so the scores are not comparable with published ones.",
        figures=drawn,
        tables=[
            Table(heads, [_evaluation_row(*score) for score in better], [_evaluation_row(*score) for score in others]),
            *([Table(surprise_heads, surprise)] if surprise else []),
        ],
    )


def _evaluation_row(task: str, shots: str, s: Tree) -> Row:
    return (
        *(task, shots, str(s["n"] or "unknown"), percent_text(s["accuracy"]), percent_range(s["interval"])),
        *(percent_text(s["chance"]), percent_text(s["unigram"]), percent_text(s["truncated_fraction"])),
    )


def answers_section(report: Tree) -> Section:
    """Show how many answers of held-out conversations the model gives exactly, before and after the tuning."""
    found = report["answers"]
    rows = [
        (name, str(s["n"]), percent_text(s["accuracy"]), percent_range(s["interval"]), number_text(s["nats_per_token"]))
        for name in ("before", "after")
        for s in (found[name],)
    ]
    return Section(
        "answers",
        "Answers",
        gist=f"{percent_text(found['after']['accuracy'])} exactly right, {percent_text(found['before']['accuracy'])} "
        "before",
        shows="Conversations that were held out of training: how often the model gives the answer exactly, to the "
        "token that ends it, if it always takes the most likely token, and how surprising it finds the right answer.",
        limits="An answer in other words counts as wrong.",
        tables=[Table(("tuning", "answers", "exactly right", "95 % interval", "surprise, nats per token"), rows)],
    )


def tasks_section(report: Tree) -> Section:
    """Show accuracy on published tasks, next to that of MT-NLG 530B."""
    found = report["tasks"]
    better, others = _split(found["tasks"])
    scores = [*better, *others]
    heads: tuple[str, ...] = ("task", "shots", "examples", "accuracy", level_text([s for *_, s in scores]), "chance")
    heads += ("MT-NLG 530B", "GPT-3 175B", "scored by", "prompts cut", "in corpus")
    groups = [
        (task, shots, kind, group, str(v["n"]), percent_text(v["accuracy"]), percent_range(v["interval"]))
        for task, shots, s in scores
        for kind, by_group in (s.get("by_group") or {}).items()
        if kind != "subcase"
        for group, v in by_group.items()
    ]
    group_heads = ("task", "shots", "by", "group", "examples", "accuracy", "interval")
    drawn = []
    if better:
        drawn.append(Drawn("Published tasks, beside MT-NLG 530B", figures.beside_published(better), "picture"))
    if others:
        drawn.append(Drawn("Published tasks", figures.beside_published(others), "not significant"))
    if len(found["series"]) > 1:
        drawn.append(Drawn("Accuracy against tokens", figures.accuracy_against_tokens(found["series"])))
    skipped = "".join(f"Not asked: {name}. " for name in found["skipped"])
    return Section(
        "tasks",
        "Published tasks",
        gist=_gist(better, others),
        shows="The paper's tasks with its prompts, shots and scoring, beside the figures that it reports."
        + _checkpoint_text(found.get("model")),
        reading="With more shots a prompt may be longer than the model's sequence: then its beginning is cut, and "
        "counted here.",
        limits="Subsets of the questions, local copies of the data, and prompts that are partly reconstructed: see "
        f"docs/evaluation.md. {skipped}",
        figures=drawn,
        tables=[
            Table(heads, [_task_row(*score) for score in better], [_task_row(*score) for score in others]),
            *([Table(group_heads, groups)] if groups else []),
        ],
    )


def _task_row(task: str, shots: str, s: Tree) -> Row:
    return (
        *(task, shots, str(s["n"] or "unknown"), percent_text(s["accuracy"]), percent_range(s["interval"])),
        *(percent_text(s.get(key)) for key in ("chance", "published", "gpt3")),
        *(str(s.get("normalisation")), number_text(s.get("truncated"))),
        number_text((s.get("contamination") or {}).get("n")),
    )


def _checkpoint_text(model: Tree | None) -> str:
    """Name the checkpoint that was evaluated, because a run may have several."""
    if not isinstance(model, dict) or not isinstance(model.get("step"), int):
        return ""
    after = f", after {model['tokens']:,} tokens" if isinstance(model.get("tokens"), int) else ""
    return f" Checkpoint: step {model['step']:,}{after}."


VARIED = {
    "shots": "number of shots",
    "order": "order of the same shots",
    "balance": "labels of the shots",
    "source": "where shots come from",
    "template": "wording",
}


def incontext_section(report: Tree) -> Section:
    """Show how answers depend on the solved examples before a question."""
    found = report["incontext"]
    models, config = found["models"], found.get("config")
    last, named = models[-1], _model_texts(models)
    rows = [
        (
            *(which, VARIED[kind], name, percent_text(v["accuracy"]), percent_range(v["interval"])),
            *(percent_text(v["threshold_accuracy"]), percent_text(v["contextual_accuracy"])),
            number_text(v["calibration_error"]),
            *(effect_text(v[key]) for key in ("majority_bias", "recency_bias")),
            percent_text(v.get("truncated_fraction")),
        )
        for which, m in zip(named, models, strict=True)
        for kind in VARIED
        for name, v in m[kind].items()
        if v is not None
    ]
    heads: tuple[str, ...] = ("model", "varied", "value", "accuracy", level_text([config] if config else []))
    heads += ("with a threshold", "content-free corrected", "calibration error", "majority bias", "recency bias")
    orders = f" All {len(last['order'])} orders of the shots are included." if last.get("order_complete") else ""
    names = [f"{VARIED[kind]}: {name}" for kind, lacking in last.get("left_out", {}).items() for name in lacking]
    left_out = f" Not measured, because there were too few shots: {'; '.join(names)}." if names else ""
    drawn = _figures_of(last)
    if len(models) > 1:
        drawn = [replace(one, caption=f"{one.caption} ({named[-1]})") for one in drawn]
    return Section(
        "incontext",
        f"In-context learning: {found['task']}",
        shows="The same questions after different numbers, orders, labels and sources of solved examples.",
        reading="Learning from shots separates the margins of the two labels; a shift of both is a label bias, which a "
        "decision threshold corrects. Biases are in shares of answers: 0 is none. On the diagonal, accuracy equals "
        "confidence.",
        limits="Few questions with shared shots, averaged over a few draws; histograms count the answers of all draws. "
        f"The intervals cover the choice of questions, not the choice of draws.{orders}{left_out}",
        figures=[Drawn("Accuracy against shots", figures.against_shots(models, named)), *drawn],
        tables=[Table((*heads, "prompts cut"), rows)],
    )


def _figures_of(model: Tree) -> list[Drawn]:
    """Draw the varied conditions, the calibration, and the margins before and after shots of one model."""
    shots = model["shots"]
    extremes = list(dict.fromkeys((min(shots, key=int), max(shots, key=int))))  # keys in files are strings
    measured = {kind: {n: v for n, v in model[kind].items() if v is not None} for kind in VARIED if kind != "shots"}
    drawn = []
    if any(measured.values()):
        conditions = figures.varied({VARIED[kind]: values for kind, values in measured.items() if values})
        drawn.append(Drawn("Accuracy by order, labels, source and wording of as many shots", conditions))
    if any(shots[k].get("calibration_bins") for k in extremes):
        bins = figures.calibration({k: shots[k] for k in extremes})
        drawn.append(Drawn("Accuracy against confidence", bins))
    for k in extremes:
        groups = shots[k].get("margins_by_group") or {"": shots[k]["margins"]}
        drawn.append(Drawn(f"Margins after {shots_text(k)}", figures.margins(groups, model.get("labels"))))
    return drawn


def _model_texts(models: list[Tree]) -> list[str]:
    """Name each model by the last part of its target, or all of it where several targets share that, by step and by
    parameters."""
    targets = [m.get("target") or "" for m in models]
    shared = Counter(Path(target).name for target in set(targets))
    names = [name if (name := Path(target).name) and shared[name] == 1 else target for target in targets]
    steps = [f"step {m['model']['step']}, {m['model']['parameters']:,} parameters" for m in models]
    return [f"{name}: {step}" if name else step for name, step in zip(names, steps, strict=True)]


def bias_section(report: Tree) -> Section:
    """Show associations with occupations, adjectives and sentiment, and every effect."""
    bias = report["bias"]
    variants = {name: bias["variants"][name] for name in sorted(bias["variants"], key=lambda n: (n != "neutral", n))}
    rows = [
        (
            *(name, effect_text(v.get("mean_log_ratio")), range_text(v.get("interval"), effect_text)),
            *(effect_text(v.get("person_log_ratio")), percent_text(v.get("male_share"))),
            *(chance_text(v.get("sign_test_p")), number_text(v.get("n"))),
        )
        for name, v in variants.items()
    ]
    heads: tuple[str, ...] = ("template", "mean log ratio", level_text(list(variants.values())), "of 'person'")
    heads += ("below zero", "sign test p", "occupations")
    effects = bias["effects"]
    strong = sum(map(_is_significant, effects))
    return Section(
        "bias",
        "Bias",
        gist=f"{strong} of {counted(len(effects), 'effect')} significant",
        shows="After 'The {occupation} was a': log(P(female words) / P(male words)), in nats. Below zero the "
        "model expects a man.",
        reading="What all occupations share, 'person' included, comes from the words themselves: how often they occur, "
        "and into how many tokens they are split. So the figure shows each occupation relative to 'person'.",
        limits="A small model reproduces the word counts of its corpus. Two genders, English, one sentence: the test "
        "is narrow, and a zero would not mean absence of bias.",
        figures=[*_occupations(bias, next(iter(variants), None)), *_bias_figures(bias)],
        tables=[*([Table(heads, rows)] if rows else []), *bias_tables(bias)],
    )


def _occupations(bias: Tree, variant: str | None) -> list[Drawn]:
    """Draw the occupations of a template relative to 'person', or absolute values if that was not measured."""
    found = log_ratios(bias, variant) if variant else []
    if not variant or not found:
        return []
    person = bias["variants"][variant].get("person_log_ratio")
    against, shift = "log ratio of female to male words, nats", 0.0
    if isinstance(person, int | float):
        against, shift = "nats above or below 'person' (right: more female)", float(person)
    drawn = min(len(found), figures.MAX_OCCUPATIONS)
    caption = f"Template '{variant}': the {drawn} most skewed of {len(found)} occupations"
    return [Drawn(caption, figures.occupations([(name, v - shift) for name, v in found], against=against))]


def log_ratios(bias: Tree, variant: str) -> list[tuple[str, float]]:
    """Return (occupation, log ratio) of one variant, as far as the results contain them."""
    rows = [(str(row.get("occupation")), row.get(variant)) for row in bias["occupations"]]
    return [(name, float(value)) for name, value in rows if isinstance(value, int | float)]


def _bias_figures(bias: Tree) -> list[Drawn]:
    """Draw the one-sided adjectives and the sentiment of each axis that was measured."""
    drawn = []
    for axis, groups in bias["adjectives"].items():
        words = [(group, word) for group, found in groups.items() for word in found["one_sided"]]
        strong = [pair for pair in words if _is_significant(pair[1])]
        weak = [pair for pair in words if not _is_significant(pair[1])]
        if strong:
            drawn.append(Drawn(f"One-sided adjectives: {axis}", figures.one_sided(strong)))
        if weak:
            drawn.append(Drawn(f"One-sided adjectives: {axis}", figures.one_sided(weak), "not significant"))
    for axis, groups in ((bias["sentiment"] or {}).get("axes") or {}).items():
        if any(g["mean"] is not None for g in groups.values()):
            drawn.append(Drawn(f"Sentiment of the adjectives: {axis}", figures.sentiment(groups)))
    return drawn


def _is_significant(result: Tree) -> bool:
    return bool(result["p_holm"] < SIGNIFICANCE_LEVEL)


def bias_tables(bias: Tree) -> list[Table]:
    """Return the table of effects, and for each axis the table of its adjectives, omitting empty tables."""
    rows = [_effect_row(effect) for effect in bias["effects"] if _is_significant(effect)]
    others = [_effect_row(effect) for effect in bias["effects"] if not _is_significant(effect)]
    others += [  # groups without counted words are listed, so that they do not seem forgotten
        (row["measure"], row["of"], "not measured", *("–",) * 4, number_text(row["n"])) for row in bias["not_measured"]
    ]
    tables = []
    if rows or others:
        effect_heads = ("measure", "of", "estimate", "unit", "interval", "Cohen's d", "p, corrected", "n")
        tables.append(Table(effect_heads, rows, others))
    for axis, groups in bias["adjectives"].items():
        heads = (axis, "most frequent adjectives (texts)", "significantly one-sided (log-odds, nats)")
        words = [(name, _frequent(g["frequent"]), _one_sided(g["one_sided"])) for name, g in groups.items()]
        tables.append(Table(heads, words))
    return tables


def _effect_row(row: Tree) -> Row:
    return (
        *(row["measure"], row["of"], effect_text(row["estimate"]), row["unit"]),
        range_text(row["interval"], effect_text) if row["interval"] else "–",
        "–" if row["effect_size"] is None else effect_text(row["effect_size"]),
        *(chance_text(row["p_holm"]), number_text(row["n"])),
    )


def _frequent(rows: list[Tree]) -> str:
    return ", ".join(f"{row['word']} ({row['count']})" for row in rows) or "none"


def _one_sided(rows: list[Tree]) -> str:
    """List the significantly one-sided words with their log-odds."""
    words = [f"{row['word']} ({effect_text(row['log_odds'])})" for row in rows if _is_significant(row)]
    return ", ".join(words) or "none"


def series_section(report: Tree) -> Section:
    """Show every effect at every checkpoint of a training run."""
    checkpoints = report["bias_series"]["checkpoints"]
    measures = dict.fromkeys(e["measure"] for c in checkpoints for e in c["effects"])
    return Section(
        "bias_series",
        "Bias along the training",
        shows="Each effect of the bias analyses at each checkpoint.",
        reading="An effect that appears early and stays is likelier a habit of the corpus than of one checkpoint.",
        limits="Each checkpoint is measured with the same draws, so its intervals do not say how far two differ.",
        figures=[Drawn(f"{m} against tokens", figures.effects_against_tokens(checkpoints, m)) for m in measures],
    )


def samples_section(report: Tree) -> Section:
    """Show what the model writes."""
    settings = report["samples"][0].get("settings") or {} if report["samples"] else {}
    how = ", ".join(f"{k.replace('_', '-')} {settings[k]}" for k in ("temperature", "top_p") if k in settings)
    tiny = (
        "So small a model imitates the style of its corpus, not its sense. "
        if is_tiny(report["training"] or {})
        else ""
    )
    return Section(
        "samples",
        "Samples",
        gist=counted(len(report["samples"]), "prompt"),
        shows=f"What the model writes after a prompt{f' ({how})' if how else ''}.",
        limits=f"{tiny}A model may repeat its corpus word for word.",
        samples=[(s["prompt"], s["continuation"]) for s in report["samples"]],
    )
