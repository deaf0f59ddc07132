"""The corpus sections show every figure of the files, and omit what is missing."""

import json

import pytest

from report.fake_run import stations
from trivium.cli.corpus_tools import keep_statistics
from trivium.cli.workspace import Workspace
from trivium.corpus.document import Document
from trivium.corpus.publish.store import write_documents
from trivium.errors import DataError
from trivium.provenance import publishing
from trivium.report.collect import collect
from trivium.report.corpus import funnel_section
from trivium.report.figures import lengths
from trivium.report.sections import sections


def written(tmp_path, *left_out):
    for name, content in stations().items():
        if name not in left_out:
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content if isinstance(content, str) else json.dumps(content))
    return tmp_path


def by_name(run):
    return {section.name: section for section in sections(collect(run))}


def test_all_statistics_are_shown(tmp_path):
    section = by_name(written(tmp_path))["corpus"]
    bars = [list(trace.y if trace.orientation != "h" else trace.x) for d in section.figures for trace in d.figure.data]
    assert [3, 5, 8] in bars and [1, 0, 0] in bars and [100] in bars
    assert [0] * 8 + [12, 7] in bars
    assert section.tables[0].headings == ("figure", "least", "median", "most")
    assert section.tables[0].rows == [("characters of web", "512.00", "3,000.50", "70,000.00")]


def test_funnel_shows_losses_and_planted_junk(tmp_path):
    report = collect(written(tmp_path))
    report |= {"planted": {"web_junk": {"planted": 1200, "caught": 1191}}}
    report |= {"honest": {"documents": 4022, "lost": 32, "lost_by": {"language": 1, "quality": 31}}}
    section = funnel_section(report)
    assert "Of 4,022 clean documents 32 were lost (language 1, quality 31)." in section.reading
    assert section.limits and section.tables[1].rows == [("web junk", "1,200", "1,191", "99.2%")]
    assert section.tables[0].headings[0] == "step"
    others = funnel_section(report | {"planted": None, "honest": None})
    assert not others.reading and not others.limits and len(others.tables) == 1


def test_extraction_shows_f1_and_missing_extractors(tmp_path):
    rows = by_name(written(tmp_path))["extraction"].tables[0].rows
    assert rows[0] == ("resiliparse", "90", "0.950", "0.940", "31.00")
    assert rows[1][1] == "not measured: its package is not installed"


def test_optional_sections_leave_no_gap(tmp_path):
    run = written(tmp_path, "statistics.json", "extraction.json")
    assert {"corpus", "extraction"}.isdisjoint(by_name(run))
    assert {"corpus", "extraction"} <= set(collect(run)["missing"])


def test_damaged_statistics_are_named(tmp_path):
    run = written(tmp_path)
    (run / "statistics.json").write_text('{"lengths": 3}')
    with pytest.raises(DataError, match="statistics.json is damaged"):
        collect(run)


def test_statistics_are_cached_until_corpus_changes(tmp_path):
    at = Workspace(tmp_path)
    assert keep_statistics(at) == {}
    for number in (1, 2):
        with publishing(tmp_path / "curated", verb="v", config={"n": number}, inputs={}) as folder:
            write_documents(folder / "documents", [Document(str(n), "x" * 600, "s") for n in range(number)])
            (folder / "rejects.jsonl.gz").write_bytes(b"")
        found = keep_statistics(at)
        assert found["lengths"] == {"s": [0] * 9 + [number]}
        assert keep_statistics(at) == json.loads((tmp_path / "statistics.json").read_text()) == found


def test_many_sources_look_different():
    marks = [bar.marker for bar in lengths({f"source {n}": [1] for n in range(20)}).data]
    assert len({(mark.color, mark.pattern.shape) for mark in marks}) == 20
    assert len({mark.color for mark in marks[:8]}) == 8
