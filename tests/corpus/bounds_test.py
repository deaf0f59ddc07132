"""No document takes a step more than about n log n time; what cannot be bounded is dropped.

Times are processor seconds of this thread, the least of several repeats, and compared between sizes: an exponent of
1.5 lies halfway between linear and quadratic. Texts beyond 64,000 characters outgrow the caches, which costs linear
work up to a factor of 2 in addition.
"""

import importlib
import json
import pkgutil
import re
import time
import unicodedata
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import trivium.corpus
from corpus.hostile import KINDS, WORDS
from trivium.corpus.clean.extract import extract_step
from trivium.corpus.clean.filters import FILTERS
from trivium.corpus.clean.tidy import MAX_COMBINING_MARKS, NotTidied, tidy
from trivium.corpus.config import CurateConfig, DecontaminationConfig, ExtractConfig, SelectionConfig
from trivium.corpus.dedup.deduplicate import without_equal_texts, without_repeated
from trivium.corpus.dedup.minhash import MinHash
from trivium.corpus.document import RAW, Document
from trivium.corpus.harvest.heldout import passages
from trivium.corpus.kernels.texts import texts_of
from trivium.corpus.kernels.words import text_keys
from trivium.corpus.read.cutting import pieces_of
from trivium.corpus.read.files import is_hidden, kind_name, name_of, shown, source_of, told_endings
from trivium.corpus.read.read import read_any
from trivium.corpus.read.warc import Page, write_warc
from trivium.corpus.select.classifier import Classifier
from trivium.corpus.select.decontaminate import Keys, cut
from trivium.corpus.select.points import whole
from trivium.corpus.select.select import rank
from trivium.corpus.steps import Drop, Keep, Reject, Step, Steps, Tally
from trivium.errors import MachineError
from trivium.tokens.tokenizer import train_tokenizer

EXPONENT = 1.5
OUTGROWN_CACHES = 2
UNMEASURABLE_SECONDS = 5e-3  # what the clock and a cold cache may add
EXTRACTORS = ("blocks", "resiliparse", "justext", "trafilatura")


def seconds(work, text, repeats):
    """The least processor time of several repeats."""
    found = []
    for _ in range(repeats):
        begin = time.thread_time()
        work(text)
        found.append(time.thread_time() - begin)
    return min(found)


def slower_than_allowed(work, make, small, growth):
    """Whether a text `growth` times as long takes out of proportion more time; asked again before it is believed."""
    allowed = growth**EXPONENT * (OUTGROWN_CACHES if small * growth > 64_000 else 1)
    for repeats in (1, 3, 5):
        short, long = (seconds(work, make(size), repeats) for size in (small, small * growth))
        if long <= allowed * max(short, UNMEASURABLE_SECONDS / growth) + UNMEASURABLE_SECONDS:
            return ""
    return f"{small} characters take {short:.2g} s, {small * growth} take {long:.2g} s"


def offenders(work, small, growth, kinds=KINDS):
    """The kinds of text that take `work` too long."""
    work(WORDS)
    found = {name: slower_than_allowed(work, make, small, growth) for name, make in kinds.items()}
    return {name: told for name, told in found.items() if told}


def filter_of(name, folder):
    """The work of a filter on one text. Every registered filter can be made from this config."""
    model = folder / "classifier.npz"
    Classifier(np.zeros(257, np.float32), 2, 64).save(model)
    step = FILTERS[name](CurateConfig(classifier={"model": str(model)}), 1)
    return lambda text: step.verdicts([Document("a", text, "s")])


def extraction_by(name):
    try:
        step = extract_step(ExtractConfig(extractor=name))
    except MachineError as error:
        pytest.skip(str(error))
    return lambda text: step.verdicts([Document("a", text, "s", {RAW: "html"})])


def comparison():
    """Return a function that computes the keys by which a text is compared with all others."""
    config = CurateConfig().dedup
    minhash = MinHash(config, seed=1)
    return lambda text: (minhash.band_keys(texts_of([text])), text_keys(texts_of([text])))


def decontamination():
    config = DecontaminationConfig()
    keys = Keys({"item": WORDS}, config)
    return lambda text: cut(text, keys.hits(texts_of([text])).get(0, []), config)


def training():
    return lambda text: train_tokenizer([text], 300)


def encoding():
    tokenizer = train_tokenizer([make(2000) for make in KINDS.values()], 600)
    assert tokenizer.bulk is not None
    return lambda text: tokenizer.encode_arrays([text])


def library_encoding():
    tokenizer = train_tokenizer([make(2000) for make in KINDS.values()], 600)
    return lambda text: tokenizer.encode(text)


def reading(name, folder):
    """Return a function that reads a file of this name, of any kind, with a text as its bytes."""
    path = folder / name

    def work(text):
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
        return list(read_any(path, source="s", longest=8000))

    return work


def reading_in(wrap, name, folder):
    """Return a function that reads a valid file of this kind that contains a text."""
    path = folder / name

    def work(text):
        wrap(text, path)
        (document,) = read_any(path, source="s")
        return document

    return work


def as_row(text, path):
    path.write_text(json.dumps({"text": text, "metadata": {"a": text}}), encoding="utf-8")


def as_page(text, path):
    write_warc(path, [Page("http://a.example/", "text/html", None, text.encode())])


def as_table(text, path):
    pq.write_table(pa.table({"text": [text], "metadata": [json.dumps({"a": text})]}), path)


def listing():
    """Return a function that derives kind, name and source from a file's name."""

    def work(text):
        url = f"memory://corpus/{text}"
        told_endings(Counter(text.split("/")))
        return is_hidden(text), kind_name(url), name_of(url), source_of(url, "memory://corpus"), shown(text)

    return work


def equal_texts():
    tally, config = Tally("t"), CurateConfig().dedup
    return lambda text: list(without_equal_texts(lambda: twice(text), config, tally))


def equal_parts(unit):
    return lambda text: list(without_repeated(twice(text), unit, Tally("t"), words=3))


def twice(text):
    return [Document(name, text, "s") for name in "ab"]


def cut_up():
    return lambda text: list(pieces_of(Document("a", text, "s"), longest=2000))


def selection(method):
    config = SelectionConfig(method=method)
    return lambda text: rank(["a", "b"], whole([text, WORDS]), whole([WORDS]), config, seed=1)


STEPS = {
    **{f"read {name}": (reading, name) for name in ("a.txt", "a.jsonl", "a.json", "a.warc", "a.warc.gz")},
    "read a row": (reading_in, as_row, "a.jsonl"),
    "read a page": (reading_in, as_page, "a.warc.gz"),
    "read a table": (reading_in, as_table, "a.parquet"),
    "lines deduplication": (equal_parts, "lines"),
    "paragraphs deduplication": (equal_parts, "paragraphs"),
    "selection by transport": (selection, "transport"),
    "selection by importance": (selection, "importance"),
    **{f"filter {name}": (filter_of, name) for name in FILTERS},
    **{f"extractor {name}": (extraction_by, name) for name in EXTRACTORS},
    **{
        work.__name__: (work,)
        for work in (comparison, decontamination, training, encoding, library_encoding, listing, equal_texts, cut_up)
    },
    "passages": (lambda: lambda text: passages(text, shortest=40, longest=80),),
}


def step_of(name, folder):
    make, *settings = STEPS[name]
    return make(*settings, folder) if make in (filter_of, reading, reading_in) else make(*settings)


@pytest.mark.parametrize("name", STEPS)
def test_no_step_takes_quadratic_time_for_any_text(name, tmp_path):
    assert not offenders(step_of(name, tmp_path), 3000, 8)


@pytest.mark.slow
@pytest.mark.parametrize("name", STEPS)
def test_no_step_takes_quadratic_time_for_large_documents(name, tmp_path):
    assert not offenders(step_of(name, tmp_path), 64_000, 8)


# Matched at one given place of a text, and never searched for from each of its characters.
MATCHED_ONCE = ("trivium.corpus.clean.main_text._STATED", "trivium.corpus.read.warc._CHUNK")


def patterns():
    """Every compiled pattern of a module of trivium.corpus."""
    for module in pkgutil.walk_packages(trivium.corpus.__path__, "trivium.corpus."):
        if "daft" not in module.name:
            for name, value in vars(importlib.import_module(module.name)).items():
                path = f"{module.name}.{name}"
                if isinstance(value, re.Pattern) and path not in MATCHED_ONCE:
                    yield path, value


def test_every_pattern_takes_linear_time():
    found = {}
    for name, pattern in patterns():

        def work(text, pattern=pattern):
            data = text.encode() if isinstance(pattern.pattern, bytes) else text
            return sum(1 for _ in pattern.finditer(data))

        if told := offenders(work, 1500, 8):
            found[name] = told
    assert not found


def test_long_runs_of_combining_marks_are_dropped_by_name():
    marks = "\u0301\u0323"
    with pytest.raises(NotTidied, match="over 30 combining marks in a row"):
        tidy(f"e{marks * 100_000}")
    with pytest.raises(NotTidied):
        tidy("e" + "\u0301\xad\u0323\xad" * 50_000)  # side by side once the soft hyphens are gone
    with pytest.raises(NotTidied):
        tidy("e\ufb01" + "\u0301\x07\u0323\x07" * 50_000)  # which ftfy would normalise
    with pytest.raises(NotTidied):
        tidy("e" + ("\u0301\u0323" * 50_000).encode().decode("latin-1"))
    allowed = f"e{marks * (MAX_COMBINING_MARKS // 2)}"
    assert tidy(allowed) == unicodedata.normalize("NFC", allowed)
    for name in ("extract", "clean"):
        verdict = FILTERS[name](CurateConfig(), 1).judge(Document("a", f"e{marks * 100_000}", "s"))
        assert verdict == Drop("over 30 combining marks in a row")


@pytest.mark.parametrize("name", ["extract", "clean"])
def test_long_run_of_one_letter_is_dropped_by_name(name):
    judge = FILTERS[name](CurateConfig(extract={"longest_run": 20}), 1).judge
    assert judge(Document("a", WORDS + "a" * 21, "s")) == Drop("over 20 times one character in a row")
    assert judge(Document("a", WORDS + "é" * 21, "s")) == Drop("over 20 times one character in a row")
    remedy = judge(Document("a", WORDS + "a" * 21, "s")).remedy
    field, _, value = remedy.removeprefix("extract.").partition("=")
    loosened = FILTERS[name](CurateConfig(extract={field: int(value)}), 1).judge
    assert isinstance(loosened(Document("a", WORDS + "a" * 21, "s")), Keep)
    assert isinstance(judge(Document("a", WORDS + "a" * 20 + " " + "é" * 20, "s")), Keep)
    assert isinstance(judge(Document("a", "a" + " " * 30 + "b\n" * 30 + " " * 30 + "c", "s")), Keep)


def test_page_with_deep_nesting_is_dropped_by_name():
    judge = extract_step(ExtractConfig(extractor="resiliparse")).judge
    page = Document("a", "<div>" * 513 + "text", "s", {RAW: "html"})
    assert judge(page) == Drop("over 512 nested elements")
    flat = Document("a", "<div><p>text<br></div>" * 5000, "s", {RAW: "html"})
    assert judge(flat) != Drop("over 512 nested elements")


def test_slow_document_is_dropped_by_name_and_the_others_stay(monkeypatch):
    clock = {"now": 0.0}
    monkeypatch.setattr(time, "thread_time", lambda: clock["now"])

    def judge_all(documents):
        clock["now"] += sum(61 if "slow" in one.text else 1 for one in documents)
        return [Keep(one) for one in documents]

    steps = Steps([Step("any", lambda one: judge_all([one])[0], judge_all)], document_seconds=60)
    documents = [Document(text, text, "s") for text in ("a", "slow", "b")]
    kept, slow, last = steps.run(documents)
    assert (kept, last) == (documents[0], documents[2])
    assert slow == Reject(documents[1], "any", "over 60 s of processor time")
    assert steps.timed_out == 1


def test_web_token_is_searched_once_in_a_run_of_its_characters(tmp_path):
    work = filter_of("privacy", tmp_path)
    once, often = ("eyJ" + "abc-" * 8000, "eyJ-" * 8000)  # of the second each hyphen is followed by a beginning
    work(WORDS)
    assert seconds(work, often, 5) < 3 * seconds(work, once, 5)
    (verdict,) = work("session-" + ".".join(["eyJ" + "a" * 20] * 2) + "." + "b" * 20)
    assert verdict.document.text == "session-[KEY]"
