"""No document takes a step more than about n log n time; what cannot be bounded is dropped.

Times are processor seconds of this thread, the least of several repeats, and compared between sizes: an exponent of
1.5 lies halfway between linear and quadratic.
"""

import importlib
import json
import pkgutil
import re
import time
import unicodedata
from collections import Counter
from contextlib import contextmanager
from itertools import islice

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tokenizers

import trivium.corpus
from corpus.hostile import KINDS, WORDS
from corpus.hostile_parquet import HOSTILE
from trivium.corpus.clean.extract import extract_step
from trivium.corpus.clean.filters import FILTERS
from trivium.corpus.clean.tidy import MOST_MARKS, NotTidied, tidy
from trivium.corpus.config import CurateConfig, DecontaminationConfig, ExtractConfig, ReadConfig, SelectionConfig
from trivium.corpus.dedup.deduplicate import without_equal_texts, without_repeated
from trivium.corpus.dedup.minhash import MinHash
from trivium.corpus.document import RAW, Damage, Document, Trouble
from trivium.corpus.harvest.heldout import passages
from trivium.corpus.kernels.texts import texts_of
from trivium.corpus.kernels.words import text_keys
from trivium.corpus.publish.store import read_documents, write_documents
from trivium.corpus.read.cutting import pieces_of
from trivium.corpus.read.files import is_hidden, kind_name, list_files, name_of, shown, source_of, told_endings
from trivium.corpus.read.parquet_headers import declared, footer_problem
from trivium.corpus.read.read import read_any
from trivium.corpus.read.warc import Page, write_warc
from trivium.corpus.select.classifier import Classifier
from trivium.corpus.select.decontaminate import Keys, cut
from trivium.corpus.select.select import select
from trivium.corpus.steps import Drop, Keep, Reject, Step, Steps, Tally
from trivium.errors import ConfigError, DataError, MachineError
from trivium.provenance import file_sha256
from trivium.tokens.tokenizer import _BLANKS, given_tokenizer, load_tokenizer, train_tokenizer

EXPONENT = 1.5
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
    allowed = growth**EXPONENT
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
    """What every text is compared by with all others."""
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
    """What a file of this name with a text as its bytes is read as, whatever that is."""
    path = folder / name

    def work(text):
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
        return list(read_any(path, source="s", longest=8000))

    return work


def reading_in(wrap, name, folder):
    """What a sound file of this kind is read as, in which a text stands."""
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
    """What names of files tell."""

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
    return lambda text: select(["a", "b"], [text, WORDS], [WORDS], config, seed=1)


STATIONS = {
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
    make, *settings = STATIONS[name]
    return make(*settings, folder) if make in (filter_of, reading, reading_in) else make(*settings)


@pytest.mark.parametrize("name", STATIONS)
def test_no_step_takes_quadratic_time_for_any_kind_of_text(name, tmp_path):
    assert not offenders(step_of(name, tmp_path), 3000, 8)


@pytest.mark.broad
@pytest.mark.parametrize("name", STATIONS)
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


def test_every_pattern_of_the_corpus_reads_every_kind_of_text_in_linear_time():
    found = {}
    for name, pattern in patterns():

        def work(text, pattern=pattern):
            data = text.encode() if isinstance(pattern.pattern, bytes) else text
            return sum(1 for _ in pattern.finditer(data))

        if told := offenders(work, 1500, 8):
            found[name] = told
    assert not found


def test_a_run_of_combining_marks_is_dropped_by_name_and_shorter_runs_are_normalised():
    marks = "\u0301\u0323"
    with pytest.raises(NotTidied, match="over 30 combining marks in a row"):
        tidy(f"e{marks * 100_000}")
    with pytest.raises(NotTidied):
        tidy("e" + "\u0301\xad\u0323\xad" * 50_000)  # side by side once the soft hyphens are gone
    with pytest.raises(NotTidied):
        tidy("e\ufb01" + "\u0301\x07\u0323\x07" * 50_000)  # which ftfy would normalise
    with pytest.raises(NotTidied):
        tidy("e" + ("\u0301\u0323" * 50_000).encode().decode("latin-1"))
    allowed = f"e{marks * (MOST_MARKS // 2)}"
    assert tidy(allowed) == unicodedata.normalize("NFC", allowed)
    for name in ("extract", "clean"):
        verdict = FILTERS[name](CurateConfig(), 1).judge(Document("a", f"e{marks * 100_000}", "s"))
        assert verdict == Drop("over 30 combining marks in a row")


@pytest.mark.parametrize("name", ["extract", "clean"])
def test_a_run_of_one_letter_is_dropped_by_name_and_blanks_are_no_letter(name):
    judge = FILTERS[name](CurateConfig(extract={"longest_run": 20}), 1).judge
    assert judge(Document("a", WORDS + "a" * 21, "s")) == Drop("over 20 times one character in a row")
    assert judge(Document("a", WORDS + "é" * 21, "s")) == Drop("over 20 times one character in a row")
    remedy = judge(Document("a", WORDS + "a" * 21, "s")).remedy
    field, _, value = remedy.removeprefix("extract.").partition("=")
    loosened = FILTERS[name](CurateConfig(extract={field: int(value)}), 1).judge
    assert isinstance(loosened(Document("a", WORDS + "a" * 21, "s")), Keep)
    assert isinstance(judge(Document("a", WORDS + "a" * 20 + " " + "é" * 20, "s")), Keep)
    assert isinstance(judge(Document("a", "a" + " " * 30 + "b\n" * 30 + " " * 30 + "c", "s")), Keep)


def test_a_page_that_nests_too_deep_for_a_parser_is_dropped_by_name():
    judge = extract_step(ExtractConfig(extractor="resiliparse")).judge
    page = Document("a", "<div>" * 513 + "text", "s", {RAW: "html"})
    assert judge(page) == Drop("over 512 nested elements")
    flat = Document("a", "<div><p>text<br></div>" * 5000, "s", {RAW: "html"})
    assert judge(flat) != Drop("over 512 nested elements")


def test_a_document_that_takes_a_step_too_long_is_named_and_the_others_stay(monkeypatch):
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


@pytest.mark.parametrize("typed", [True, False])
def test_rows_that_refer_to_one_entry_of_a_dictionary_are_counted_as_they_are_read(tmp_path, typed):
    path = tmp_path / "bomb.parquet"
    texts = pa.array(["0123456789" * 1000] * 2000)
    pq.write_table(pa.table({"text": texts.dictionary_encode() if typed else texts}), path)
    limits = ReadConfig(longest_bytes=100_000, unpacked_ratio=5)
    *documents, last = read_any(path, source="s", limits=limits)
    assert isinstance(last, Damage) and last.trouble == Trouble.BOMB
    assert len(documents) + last.records == 2000
    assert sum(one.text_bytes for one in documents) <= 100_000
    assert not any(isinstance(one, Damage) for one in read_any(path, source="s", limits=ReadConfig()))


@contextmanager
def arrow_memory():
    """A pool that knows how much Arrow held at most inside."""
    before = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(before)
    pa.set_memory_pool(pool)
    yield pool
    pa.set_memory_pool(before)


@pytest.mark.parametrize("name", HOSTILE)
def test_no_parquet_file_takes_more_memory_or_rows_than_its_bytes_allow(tmp_path, name):
    path = tmp_path / "a.parquet"
    path.write_bytes(HOSTILE[name]())
    limits = ReadConfig(longest_bytes=1 << 20)
    with arrow_memory() as pool:
        *_, last = items = list(islice(read_any(path, source="s", limits=limits), 50_000))
    assert isinstance(last, Damage) and last.trouble in (Trouble.BOMB, Trouble.PARQUET)
    assert len(items) < 20_000 and pool.max_memory() < 8 << 20
    assert sum(one.records if isinstance(one, Damage) else 1 for one in items) < 2**31


def test_page_headers_of_ordinary_parquet_files_declare_what_arrow_reads(tmp_path):
    """With every packing, version of pages, dictionaries, nulls, lists, and many small pages."""
    rows = [
        {"text": f"text {n % 7} " * (n % 50), "tags": [str(n)] * (n % 3), "n": n if n % 5 else None} for n in range(600)
    ]
    table = pa.Table.from_pylist(rows)
    options = [{"compression": packing} for packing in ("none", "snappy", "gzip", "zstd", "lz4", "brotli")]
    options += [{"data_page_version": "2.0"}, {"use_dictionary": False}, {"data_page_size": 256}]
    options += [{"use_dictionary": False, "column_encoding": {"n": "DELTA_BINARY_PACKED"}}]
    options += [{"use_dictionary": False, "column_encoding": {"text": "DELTA_LENGTH_BYTE_ARRAY"}}]
    options += [{"use_dictionary": False, "column_encoding": {"text": "DELTA_BYTE_ARRAY"}}]
    for number, option in enumerate(options):
        path = tmp_path / f"{number}.parquet"
        pq.write_table(table, path, row_group_size=200, **option)
        with path.open("rb") as file:
            assert footer_problem(file) == ""
            opened = pq.ParquetFile(file)
            for group in range(3):
                told = declared(file, opened, group, {0, 1, 2})
                chunks = [opened.metadata.row_group(group).column(n) for n in range(3)]
                footer = sum(chunk.total_uncompressed_size for chunk in chunks)
                assert told.rows == 200 and footer // 2 < told.unpacked <= footer
                assert told.beside < 20 * footer
        documents = list(read_any(path, source="s"))
        assert [one.text for one in documents] == [row["text"] for row in rows]
        assert documents[8].metadata == {"n": 8}


@pytest.mark.parametrize("content", [HOSTILE["columns in columns"], lambda: b"no Parquet", lambda: b""])
def test_a_forged_parquet_shard_of_documents_is_refused_by_its_name(tmp_path, content):
    write_documents(tmp_path, [Document("a", "text", "s")])
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    (shard,) = manifest["shards"]
    (tmp_path / shard["file"]).write_bytes(content())
    shard["sha256"] = file_sha256(tmp_path / shard["file"])
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(DataError, match=f"{shard['file']} is not readable Parquet: .*; curate the corpus again"):
        list(read_documents(tmp_path))


def test_no_damaged_byte_of_a_parquet_file_ends_its_reader(tmp_path):
    path = tmp_path / "a.parquet"
    rows = pa.table({"text": ["a", "b"] * 50, "metadata": [{"tags": ["x", "y"]}] * 100})
    pq.write_table(rows, path, store_schema=False, write_statistics=False)
    data = path.read_bytes()
    for place in range(0, len(data), 3):
        path.write_bytes(data[:place] + bytes([data[place] ^ 0xFF]) + data[place + 1 :])
        assert list(read_any(path, source="s")), place


def test_a_long_run_of_one_letter_makes_no_long_token_and_comes_back_unchanged():
    text = WORDS * 50 + "a" * 50_000 + " " + WORDS
    tokenizer = train_tokenizer([text, "-" * 20_000, " " * 20_000, "é" * 20_000], 700)
    assert max(map(len, tokenizer.words)) <= 128
    assert tokenizer.bulk is not None
    (ids,) = tokenizer.encode_arrays([text])
    assert tokenizer.decode(ids.tolist()) == text
    assert ids.tolist() == tokenizer.encode(text)


def test_a_wordpiece_tokenizer_that_looks_up_words_of_any_length_is_refused_with_a_remedy(tmp_path):
    library = tokenizers.Tokenizer(
        tokenizers.models.WordPiece(
            {"[UNK]": 0, "a": 1, "##a": 2, "<|endoftext|>": 3}, unk_token="[UNK]", max_input_chars_per_word=1_000_000
        )
    )
    library.add_special_tokens(["<|endoftext|>"])
    path = tmp_path / "tokenizer.json"
    library.save(str(path))
    with pytest.raises(ConfigError, match="max_input_chars_per_word = 1000000.*set it to 4096 or less"):
        given_tokenizer(str(path))
    path.write_text(path.read_text().replace("1000000", "4096"))
    assert given_tokenizer(str(path)).encode("aa") == [1, 2]


def test_words_are_cut_at_the_blanks_at_which_the_library_ends_them():
    """Else a text of others is one long word for the trainer, which takes quadratic time in it."""
    library = tokenizers.pre_tokenizers.Split(tokenizers.Regex(r"\s"), "removed")
    for code in (*range(0x3100), 0xFEFF):
        text = "a" + chr(code) + "b"
        ends = library.pre_tokenize_str(text)[0][0] == "a"
        assert ends == bool(re.search(f"[{_BLANKS}]", text)), hex(code)


def test_links_between_folders_cannot_make_a_listing_endless(tmp_path):
    for number in range(30):
        (tmp_path / f"{number}").mkdir()
        for name in "ab":
            (tmp_path / f"{number}" / name).symlink_to(tmp_path / f"{number + 1}")
    (tmp_path / "30").mkdir()
    (tmp_path / "30" / "text.txt").write_text("a")
    with pytest.raises(DataError, match="is reached in more than 100 ways, through links.*remove"):
        list_files(tmp_path / "0")
    assert len(list_files(tmp_path / "25").files) == 2**5, "some ways are allowed"


def test_folders_within_folders_are_listed_to_a_depth_and_then_named(tmp_path):
    deep = tmp_path
    for _ in range(200):
        deep = deep / "a"
    deep.mkdir(parents=True)
    (deep / "text.txt").write_text("a")
    assert len(list_files(tmp_path).files) == 1
    (deep / "a").mkdir()
    with pytest.raises(DataError, match="lies more than 200 folders deep in the corpus; move it up"):
        list_files(tmp_path)


def tokenizer_with(tmp_path, **parts):
    """A tokenizer file of two letters, with other steps."""
    library = tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0, "b": 1, "<|endoftext|>": 2}, []))
    library.add_special_tokens(["<|endoftext|>"])
    for name, part in parts.items():
        setattr(library, name, part)
    library.save(str(tmp_path / "tokenizer.json"))
    return str(tmp_path / "tokenizer.json")


@pytest.mark.parametrize("pattern", ["(a+)+b", "(a|aa)+b", r"(\w+)*z", r"(\s|[ ])+x", "(1*)*2", "(é|éé)+b", "(x+x+)+y"])
@pytest.mark.parametrize("part", ["normalizer", "pre_tokenizer"])
def test_a_tokenizer_whose_patterns_backtrack_is_refused_when_it_is_opened(tmp_path, part, pattern):
    regex = tokenizers.Regex(pattern)
    step = {
        "normalizer": lambda: tokenizers.normalizers.Replace(regex, "a"),
        "pre_tokenizer": lambda: tokenizers.pre_tokenizers.Split(regex, "isolated"),
    }[part]()
    path = tokenizer_with(tmp_path, **{part: step})
    with pytest.raises(ConfigError, match=r"tokens.tokenizer: .*tokenizer.json: \d+ times '.'.*as a\+\+ in place"):
        given_tokenizer(path)
    with pytest.raises(ConfigError, match=r"tokenizer.json: \d+ times '.'"):
        load_tokenizer(path)


@pytest.mark.parametrize(
    "steps",
    [
        [tokenizers.normalizers.Replace("a", "aa")] * 40,
        [tokenizers.normalizers.Replace("a", "a" * 100_000)],
        [tokenizers.normalizers.Replace(tokenizers.Regex(""), "a" * 40)] * 3,
        [tokenizers.normalizers.Prepend("a" * 1000)],
        [tokenizers.normalizers.ByteLevel()] * 40,
        [tokenizers.normalizers.Sequence([tokenizers.normalizers.Replace("a", "aaaa")] * 2)] * 3,
        [tokenizers.normalizers.NFC()] * 1000,
    ],
)
def test_a_tokenizer_whose_steps_multiply_a_text_is_refused_before_it_encodes(tmp_path, steps):
    path = tokenizer_with(tmp_path, normalizer=tokenizers.normalizers.Sequence(steps))
    with pytest.raises(ConfigError, match="normalizer (may make|has 1000 steps).*; the limit is 64: remove"):
        given_tokenizer(path)


def test_steps_of_published_tokenizers_are_within_the_bounds(tmp_path):
    n, p = tokenizers.normalizers, tokenizers.pre_tokenizers
    normalizers = [
        n.Sequence([n.Prepend("▁"), n.Replace(" ", "▁")]),
        n.Sequence([n.Replace("``", '"'), n.Replace("''", '"'), n.NFKD(), n.StripAccents(), n.Lowercase()]),
        n.Sequence([n.Nmt(), n.NFKC(), n.Replace(tokenizers.Regex(" {2,}"), " ")]),
        n.BertNormalizer(),
        n.ByteLevel(),
    ]
    words = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    words += r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    splits = [p.Sequence([p.Split(tokenizers.Regex(words), "isolated"), p.ByteLevel(use_regex=False)])]
    splits += [p.ByteLevel(), p.Metaspace(), p.BertPreTokenizer(), p.Sequence([p.Digits(), p.Punctuation()])]
    for normalizer in normalizers:
        for split in splits:
            path = tokenizer_with(tmp_path, normalizer=normalizer, pre_tokenizer=split)
            assert given_tokenizer(path).vocabulary == 3


def test_a_panic_while_a_text_is_encoded_is_an_error_with_a_remedy(tmp_path):
    regex = tokenizers.Regex(r"(?:ab|a|b)+(?:ab|ba)+c")  # no run of one letter is slow
    path = tokenizer_with(tmp_path, pre_tokenizer=tokenizers.pre_tokenizers.Split(regex, "isolated"))
    tokenizer = given_tokenizer(path)
    for encode in (tokenizer.encode, lambda text: tokenizer.encode_batch([text])):
        with pytest.raises(DataError, match=r"cannot encode a text \(.*retry-limit.*; write the patterns"):
            encode("ab" * 5000)


def test_a_web_token_is_looked_for_once_in_a_run_of_its_characters(tmp_path):
    work = filter_of("privacy", tmp_path)
    once, often = ("eyJ" + "abc-" * 8000, "eyJ-" * 8000)  # of the second each hyphen is followed by a beginning
    work(WORDS)
    assert seconds(work, often, 5) < 3 * seconds(work, once, 5)
    (verdict,) = work("session-" + ".".join(["eyJ" + "a" * 20] * 2) + "." + "b" * 20)
    assert verdict.document.text == "session-[KEY]"
