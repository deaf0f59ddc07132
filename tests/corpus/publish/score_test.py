"""Laws of scoring: counted from what is on disk, not from what curation believes."""

import gzip
import json

from trivium.corpus.document import Document
from trivium.corpus.publish.output import score
from trivium.corpus.publish.store import write_documents

PASSAGE = "these are the words of a passage that nobody must find in any text that a model has been trained on"


def test_what_is_gone_is_caught_and_what_is_left_is_not(tmp_path):
    kept = [
        Document("honest", "plain text", "s"),
        Document("junk-left", "junk", "s"),
        Document("cut#0", "the first piece", "s", {"decontamination": {"of": "cut"}}),
        Document("cut#1", "the second piece", "s", {"decontamination": {"of": "cut"}}),
        Document("leaking", f"still here: {PASSAGE}.", "s"),
    ]
    write_documents(tmp_path / "documents", kept)
    rows = [("junk-gone", "quality"), ("lost", "language"), ("also-lost", "quality"), ("some/file", "read")]
    rows.append(("cut", "decontamination"))  # of its pieces some are left
    with gzip.open(tmp_path / "rejects", "wt") as file:
        file.writelines(json.dumps({"id": i, "step": step}) + "\n" for i, step in rows)
    planted = {
        "low_quality": [{"id": "junk-gone"}, {"id": "junk-left"}],
        "leaked_item": [{"id": "cut", "item": "i"}, {"id": "leaking", "item": "i"}, {"id": "lost", "item": "i"}],
    }
    caught, honest = score(planted, {"i": PASSAGE}, tmp_path / "documents", tmp_path / "rejects")
    assert caught == {"low_quality": {"planted": 2, "caught": 1}, "leaked_item": {"planted": 3, "caught": 2}}
    assert honest == {"documents": 5, "lost": 2, "lost_by": {"language": 1, "quality": 1}}
