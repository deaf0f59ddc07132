"""Gopher's repetition rules (table A1): lines, paragraphs and n-grams that repeat inside a document."""

from collections.abc import Sequence

from trivium.corpus.config import RepetitionConfig
from trivium.corpus.document import Document
from trivium.corpus.kernels.repeats import AGAIN, AGAIN_CHARACTERS, PARAGRAPHS, PART_CHARACTERS, PARTS, repeats
from trivium.corpus.kernels.texts import joined
from trivium.corpus.steps import Drop, Keep, Step, Verdict, measured_step, noted

Rule = tuple[str, float, float]  # name, share in a text, largest share allowed


def repetition_step(config: RepetitionConfig) -> Step:
    """Return the step that drops a document at the first rule it breaks; metadata gains `repetition`, the worst."""

    def verdict(document: Document, rules: list[Rule]) -> Verdict:
        for name, share, limit in rules:
            if share > limit:
                return Drop(f"repeated {name}", f"repetition.{_remedy(name, config)}")
        worst = max(rules, key=lambda rule: rule[1] / max(rule[2], 1e-9))
        return Keep(noted(document, repetition={worst[0]: round(worst[1], 4)}))

    return measured_step("repetition", lambda texts: measure_all(texts, config), verdict)


def measure_all(texts: Sequence[str], config: RepetitionConfig) -> list[list[Rule]]:
    """Return every rule, with its share in each text."""
    tops = len(config.top_ngram)
    found: list[list[Rule]] = []
    for parts, runs in zip(*repeats(joined(texts), tops=tops, repeated=len(config.repeated_ngram)), strict=True):
        rules: list[Rule] = []
        for name, counts, share, characters in (
            ("lines", parts.tolist(), config.duplicate_lines, config.duplicate_line_characters),
            (
                "paragraphs",
                parts[PARAGRAPHS:].tolist(),
                config.duplicate_paragraphs,
                config.duplicate_paragraph_characters,
            ),
        ):
            rules.append((name, counts[AGAIN] / max(counts[PARTS], 1), share))
            repeated = counts[AGAIN_CHARACTERS] / max(counts[PART_CHARACTERS], 1)
            rules.append((f"{name} (characters)", repeated, characters))
        total, *covered = runs.tolist()
        names = [*(f"{n}-gram" for n in range(2, 2 + tops)), *(f"{n}-grams" for n in range(5, 5 + len(covered) - tops))]
        limits = (*config.top_ngram, *config.repeated_ngram)
        rules += [(n, some / max(total, 1), limit) for n, some, limit in zip(names, covered, limits, strict=True)]
        found.append(rules)
    return found


def _remedy(name: str, config: RepetitionConfig) -> str:
    """Return the setting under which no document breaks the rule of this name."""
    if "gram" in name:
        setting = "repeated_ngram" if name.endswith("s") else "top_ngram"
        return f"{setting}=[{','.join('1' for _ in getattr(config, setting))}]"
    return f"duplicate_{name.removesuffix(' (characters)').rstrip('s')}{'_characters' if '(' in name else 's'}=1"
