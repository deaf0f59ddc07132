"""Documents that are kept unchanged: none is dropped, cut or altered, and each is counted and can be traced."""

import json

from trivium.corpus.config import CurateConfig, HarvestConfig
from trivium.corpus.harvest.harvest import harvest
from trivium.corpus.pipeline import curate
from trivium.corpus.publish.store import read_documents
from trivium.corpus.read.warc import Page, write_warc

# What filters would drop, deduplication merge, extraction tidy, and harvests cut.
TEXTS = [
    "short",
    "the same text",
    "the same text",
    "  blanks \n\n\n\n and\ttabs  ",
    "x" * 5000,
    "Ã© naÃ¯ve",
    "ein deutscher Satz",
]
TEXTS += ["A long text of several paragraphs.\n\n" * 900, *(f"Text number {n}." for n in range(40))]


def test_every_document_is_kept_unchanged(tmp_path):
    (tmp_path / "mine").mkdir()
    rows = [{"text": text, "id": f"row-{n}"} for n, text in enumerate(TEXTS)]
    (tmp_path / "mine" / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    page = (
        b"<html><body><nav>menu</nav><p>"
        + b"A page of HTML has a main text of many words. " * 30
        + b"</p></body></html>"
    )
    write_warc(tmp_path / "mine" / "pages.warc.gz", [Page("http://a.example/", "text/html", "utf-8", page)])
    for name in ("raw", "out"):
        (tmp_path / name).mkdir()
    config = HarvestConfig(cut_rows=False, evaluation_items=3)
    harvest(config, tmp_path / "raw", seed=1, corpus=tmp_path / "mine")
    held = {document.id for document in read_documents(tmp_path / "raw" / "heldout")}
    found = curate(CurateConfig(keep_all=True), tmp_path / "raw", tmp_path / "out", seed=1)
    kept = {document.id: document.text for document in read_documents(tmp_path / "out" / "documents")}
    rows_kept = {name: text for name, text in kept.items() if name.startswith("row-")}
    assert rows_kept == {f"row-{n}": text for n, text in enumerate(TEXTS) if f"row-{n}" not in held}
    pages = [text for name, text in kept.items() if name not in rows_kept]
    assert len(held) <= 5 and all("menu" not in text and text.startswith("A page of HTML") for text in pages)
    assert [step["documents"] for step in found["funnel"]] == [len(kept)] * len(found["funnel"])
    assert not any(step["dropped"] for step in found["funnel"])
