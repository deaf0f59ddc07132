"""Gopher's repetition rules (table A1): lines, paragraphs and n-grams that repeat inside one document."""

from collections.abc import Sequence

from trivium.corpus.config import RepetitionConfig
from trivium.corpus.document import Document
from trivium.corpus.kernels.repeats import AGAIN, AGAIN_CHARACTERS, PARAGRAPHS, PART_CHARACTERS, PARTS, repeats
from trivium.corpus.kernels.texts import joined
from trivium.corpus.steps import Drop, Keep, Step, Verdict, measured_step, noted

Rule = tuple[str, float, float]  # its name, the share in a text, the largest share allowed


def repetition_step(config: RepetitionConfig) -> Step:
    """Return the step that drops a document at the first repetition rule it breaks; metadata gains `repetition`."""

    def verdict(document: Document, rules: list[Rule]) -> Verdict:
        for name, share, limit in rules:
            if share > limit:
                return Drop(f"repeated {name}", f"repetition.{_remedy(name, config)}")
        worst = max(rules, key=lambda rule: rule[1] / max(rule[2], 1e-9))
        return Keep(noted(document, repetition={worst[0]: round(worst[1], 4)}))

    return measured_step("repetition", lambda texts: measure_all(texts, config), verdict)


def measure_all(texts: Sequence[str], config: RepetitionConfig) -> list[list[Rule]]:
    """Return every rule, with its share in each text."""
    counts = repeats(joined(texts), tops=len(config.top_ngram), repeated=len(config.repeated_ngram))
    return [_rules(parts, runs, config) for parts, runs in zip(*(one.tolist() for one in counts), strict=True)]


def _remedy(name: str, config: RepetitionConfig) -> str:
    """Return the setting under which no document breaks the rule of this name."""
    if "gram" in name:
        setting = "repeated_ngram" if name.endswith("s") else "top_ngram"
        return f"{setting}=[{','.join('1' for _ in getattr(config, setting))}]"
    return f"duplicate_{name.removesuffix(' (characters)').rstrip('s')}{'_characters' if '(' in name else 's'}=1"


def _rules(parts: list[int], runs: list[int], config: RepetitionConfig) -> list[Rule]:
    total, tops = max(runs[0], 1), len(config.top_ngram)
    return [
        *_of_parts("lines", parts, config.duplicate_lines, config.duplicate_line_characters),
        *_of_parts(
            "paragraphs", parts[PARAGRAPHS:], config.duplicate_paragraphs, config.duplicate_paragraph_characters
        ),
        *(
            (f"{n}-gram", covered / total, limit)
            for n, (covered, limit) in enumerate(zip(runs[1 : 1 + tops], config.top_ngram, strict=True), 2)
        ),
        *(
            (f"{n}-grams", covered / total, limit)
            for n, (covered, limit) in enumerate(zip(runs[1 + tops :], config.repeated_ngram, strict=True), 5)
        ),
    ]


def _of_parts(name: str, counts: list[int], share: float, characters: float) -> list[Rule]:
    return [
        (name, counts[AGAIN] / max(counts[PARTS], 1), share),
        (f"{name} (characters)", counts[AGAIN_CHARACTERS] / max(counts[PART_CHARACTERS], 1), characters),
    ]
