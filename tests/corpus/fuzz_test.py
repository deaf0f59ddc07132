"""Ten thousand nonsensical documents pass every step that judges single documents, without a crash."""

import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from corpus.funnels import balances
from trivium.corpus.clean.extract import extract_step
from trivium.corpus.clean.filters import FILTERS, named_steps
from trivium.corpus.config import CurateConfig
from trivium.corpus.dedup.groups import url_key
from trivium.corpus.document import RAW, Document
from trivium.corpus.read.encoding import decode
from trivium.corpus.select.classifier import Classifier
from trivium.corpus.steps import Drop, Step, Steps
from trivium.seeds import generator_for

DOCUMENTS = 10_000
AT_ONCE = 50
JUDGES = tuple(name for name in FILTERS if name not in ("extract", "clean"))  # what makes text plain comes first here
MOST_MEMORY = 512 << 20  # beyond what the process held before, which may have run other tests
TAGS = [
    b"<p>",
    b"</p>",
    b"<div>",
    b"<script>",
    b"<!--",
    b"]]>",
    b"<a href='",
    b"&#xD800;",
    b"&amp;",
    b"<table><tr><td>",
]
SCRIPTS = [
    "the quick brown fox ",
    "Привет мир ",
    "日本語です",
    "مرحبا ",
    "e\u0301\u200d🏳️‍🌈 ",
    "a@b.cc +49 89 1234567 8.8.8.8 ",
]
CHARSETS = [
    None,
    "utf-8",
    "latin-1",
    "utf-16",
    "utf-7",
    "idna",
    "punycode",
    "undefined",
    "no such",
    "rot13",
    "\x00",
    "shift_jis",
    "raw_unicode_escape",
    "iso-2022-jp",
    "hz",
]


def noise(generator):
    """Bytes that are text, markup, other bytes, or a mixture; most short, some long."""
    parts = []
    for _ in range(int(generator.integers(1, 12))):
        kind = int(generator.integers(6))
        repeat = int(generator.integers(1, 40))
        if kind == 0:
            parts.append(generator.bytes(repeat))
        elif kind == 1:
            parts.append(TAGS[int(generator.integers(len(TAGS)))] * repeat)
        elif kind == 2:
            parts.append(bytes(generator.integers(32, 127, repeat * 10, dtype=np.uint8)))
        elif kind == 3:
            parts.append(b"\n" * repeat)
        else:
            text = SCRIPTS[int(generator.integers(len(SCRIPTS)))] * repeat
            parts.append(text.encode("utf-16" if generator.random() < 0.1 else "utf-8"))
    return b"".join(parts)


def nonsense(number):
    """A document of noise, or a page of it."""
    body = noise(generator_for(number, "corpus-fuzz"))
    text = decode(body, CHARSETS[number % len(CHARSETS)])
    text.encode()
    url = body[:40].decode("latin-1") if number % 3 else ""
    document = Document(str(number), text, "fuzz", {RAW: "html", "url": url} if number % 2 else {"url": url})
    url_key(document)
    return document


def held(kind):
    """Bytes of memory of this process."""
    (kilobytes,) = re.findall(rf"{kind}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(kilobytes) * 1024


@pytest.mark.broad
def test_ten_thousand_documents_without_sense_are_kept_or_dropped_and_never_crash(tmp_path):
    Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here on
    before = held("VmRSS")
    Classifier(np.zeros(257, np.float32), 2, 64).save(tmp_path / "c.npz")
    config = CurateConfig(
        filters=JUDGES,
        classifier={"model": str(tmp_path / "c.npz")},
        quality={"characters": 1, "words_low": 1, "common_words": 0},
        language={"percent": 1},
    )
    extract, judges = extract_step(), named_steps(config, seed=1)
    texts = []

    def extracted(document):
        verdict = extract.judge(document)
        if not isinstance(verdict, Drop):
            texts.append(verdict.document)
        return verdict

    together = Steps([Step(extract.name, extracted), *judges])
    reasons = Counter()
    for first in range(0, DOCUMENTS, AT_ONCE):
        texts.clear()
        documents = list(map(nonsense, range(first, first + AT_ONCE)))
        assert len(list(together.run(documents))) == AT_ONCE
        for step in judges:  # every step sees the text, not only what the step before let through
            for verdict in step.verdicts(texts):
                reasons[step.name] += isinstance(verdict, Drop)
                if not isinstance(verdict, Drop):
                    verdict.document.text.encode()
    funnel = [tally.as_json() for tally in together.tallies]
    assert balances(funnel)
    assert funnel[0]["documents"] + sum(funnel[0]["dropped"].values()) == DOCUMENTS
    assert set(reasons) == set(JUDGES) and all(reasons[name] > 0 for name in JUDGES if name != "privacy")
    assert held("VmHWM") - before < MOST_MEMORY
