"""The curation station: a harvest's raw files → documents fit to train on, with every loss accounted for.

Writes documents/, rejects.jsonl.gz, funnel.json, blend.json, decontamination.json; planted.json and honest.json
when the harvest says what it planted. Texts are held on disk between the passes, not in memory.
"""

import gzip
import json
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from trivium.corpus.blend import blend
from trivium.corpus.config import CurateConfig
from trivium.corpus.decontaminate import Counters, Keys, common_keys, decontaminate
from trivium.corpus.dedup.cluster import components, survivors
from trivium.corpus.dedup.exact import exact_step
from trivium.corpus.dedup.minhash import Hashes, MinHash, candidate_pairs, jaccard, shingles
from trivium.corpus.document import Document
from trivium.corpus.extract import extract_step
from trivium.corpus.filters.language import language_step
from trivium.corpus.filters.quality import quality_step
from trivium.corpus.filters.repetition import repetition_step
from trivium.corpus.raw_files import JSONL_FOLDER, WARC_FOLDER
from trivium.corpus.read import input_files, read_any
from trivium.corpus.score import score
from trivium.corpus.steps import Reject, Steps, Tally
from trivium.corpus.store import MANIFEST, read_documents, write_documents
from trivium.corpus.warc import Damage
from trivium.errors import DataError
from trivium.progress import Progress, silent
from trivium.provenance import write_json

DOCUMENTS, REJECTS, FUNNEL, BLEND = "documents", "rejects.jsonl.gz", "funnel.json", "blend.json"
DECONTAMINATION, PLANTED, HONEST = "decontamination.json", "planted.json", "honest.json"


def curate(
    config: CurateConfig, source: Path, out: Path, *, seed: int, progress: Progress = silent
) -> dict[str, Any]:
    """Curate the harvest at `source` into the existing folder `out`; returns what it wrote about itself."""
    work = out / ".work"
    with (
        open(out / REJECTS, "wb") as packed,
        gzip.GzipFile(filename="", fileobj=packed, mode="wb", compresslevel=4, mtime=0) as rejects,
    ):
        curation = _Curation(config, source, rejects, progress)
        write_documents(work / "filtered", curation.filtered(), shard_bytes=config.shard_bytes)
        curation.require_documents(work / "filtered")
        write_documents(
            work / "unique", curation.unique(work / "filtered", seed=seed), shard_bytes=config.shard_bytes
        )
        manifest = write_documents(
            out / DOCUMENTS, curation.clean(work / "unique"), shard_bytes=config.shard_bytes
        )
    shutil.rmtree(work)
    result: dict[str, Any] = {
        "funnel": [tally.as_json() for tally in curation.tallies],
        "blend": blend(manifest["sources"], config.blend),
        "decontamination": curation.decontamination,
    }
    for name, key in ((FUNNEL, "funnel"), (BLEND, "blend"), (DECONTAMINATION, "decontamination")):
        write_json(out / name, result[key])
    return {**result, **_scored(source, out)}


def funnel_lines(result: dict[str, Any]) -> list[str]:
    """The funnel and what became of the planted junk, as plain lines for a terminal."""
    lines = [f"{'step':<18}{'documents':>10}{'MB':>9}   dropped"]
    for entry in result["funnel"]:
        reasons = sorted(entry["dropped"].items(), key=lambda pair: (-pair[1], pair[0]))
        parts = [f"{count} {reason}" for reason, count in reasons[:3]]
        if len(reasons) > 3:
            parts.append(f"{sum(count for _, count in reasons[3:])} other")
        parts += [f"{entry['quarantined']} unreadable"] if entry["quarantined"] else []
        parts += [f"(+{entry['added']} by splitting)"] if entry["added"] else []
        note = ", ".join(parts)
        lines.append(
            f"{entry['step']:<18}{entry['documents']:>10}{entry['bytes'] / 1e6:>9.2f}   {note}".rstrip()
        )
    for kind, counts in (result.get("planted") or {}).items():
        share = 100 * counts["caught"] / max(counts["planted"], 1)
        lines.append(
            f"planted {kind:<16} {counts['caught']:>5} of {counts['planted']:>5} caught ({share:.1f} %)"
        )
    honest = result.get("honest")
    if honest:
        share = 100 * honest["lost"] / max(honest["documents"], 1)
        by = ", ".join(f"{count} {step}" for step, count in honest["lost_by"].items())
        lines.append(
            f"honest documents lost   {honest['lost']} of {honest['documents']} ({share:.2f} %) {by}".rstrip()
        )
    return lines


class _Curation:
    """One curation: the passes over the corpus, and what each of them counted."""

    def __init__(
        self, config: CurateConfig, source: Path, rejects: gzip.GzipFile, progress: Progress
    ) -> None:
        self._config, self._source, self._rejects, self._progress = config, source, rejects, progress
        self._steps = Steps(
            [
                extract_step(),
                language_step(config.language),
                quality_step(config.quality),
                repetition_step(config.repetition),
                exact_step(),
            ]
        )
        self._read = Tally("read")
        self._dedup = Tally("near duplicates")
        self._decontaminated = Tally("decontamination")
        self.tallies = (self._read, *self._steps.tallies, self._dedup, self._decontaminated)
        self.decontamination: dict[str, Any] = {}
        self._damage: list[str] = []

    def filtered(self) -> Iterator[Document]:
        """Documents that pass every step that looks at one document at a time."""
        for number, result in enumerate(self._steps.run(self._raw()), start=1):
            if number % 100 == 0:
                self._progress(number, None, "extracting and filtering")
            if isinstance(result, Reject):
                self._reject(result.document, result.step, result.reason)
            else:
                yield result

    def require_documents(self, filtered: Path) -> None:
        """DataError when no document is left, saying where they went."""
        if (filtered / MANIFEST).is_file() and self._steps.tallies[-1].documents > 0:
            return
        if self._read.documents == 0:
            what = self._damage[0] if self._damage else "its files hold no document"
            raise DataError(f"{self._source} gives no document: {what}; harvest again")
        worst = max(self._steps.tallies, key=lambda tally: sum(tally.dropped.values()))
        raise DataError(
            f"none of the {self._read.documents} documents of {self._source} is left after filtering; most were "
            f"dropped by '{worst.step}' ({', '.join(worst.dropped)}): loosen corpus thresholds or give more text"
        )

    def unique(self, filtered: Path, *, seed: int) -> Iterator[Document]:
        """Documents that are no near duplicate of a held-out or a better document."""
        config = self._config.dedup
        minhash = MinHash(bands=config.bands, rows=config.rows, seed=seed)
        ids: list[str] = []
        sources: list[str] = []
        keys: list[Hashes] = []
        heldout = 0
        for is_heldout, document in self._with_heldout(filtered):
            heldout += is_heldout
            ids.append(document.id)
            sources.append("" if is_heldout else document.source)
            keys.append(minhash.band_keys(shingles(document.text, size=config.shingle)))
            if len(ids) % 100 == 0:
                self._progress(
                    len(ids), self._steps.tallies[-1].documents + heldout, "finding near duplicates"
                )
        similar = self._verified(filtered, candidate_pairs(np.array(keys)))
        labels = components(similar, documents=len(ids))
        # a held-out text (source "") wins over any other, so that training never sees it
        best = survivors(labels, sources, priority=("", *config.priority))
        closest: dict[int, float] = {}
        for (a, b), similarity in similar.items():
            for index in (a, b):
                closest[index] = max(closest.get(index, 0.0), similarity)
        for index, document in enumerate(read_documents(filtered, verify=False), start=heldout):
            if best[index] == index:
                self._dedup.keep(document)
                yield document
                continue
            reason = "near duplicate" if best[index] >= heldout else "near duplicate of a held-out document"
            self._dedup.dropped[reason] += 1
            detail = {"survivor": ids[best[index]], "jaccard": round(closest[index], 4)}
            self._reject(document, self._dedup.step, reason, **detail)

    def clean(self, unique: Path) -> Iterator[Document]:
        """Documents without evaluation text."""
        config, tally = self._config.decontamination, self._decontaminated
        items = _evaluation_items(self._source)
        keys = Keys(items, config)
        found = len(keys.owners)
        self._progress(0, self._dedup.documents, "counting evaluation n-grams")
        texts = (document.text for document in read_documents(unique, verify=False))
        common = common_keys(texts, keys, common=config.common)
        keys.spare(common)
        counters = Counters()
        for number, document in enumerate(read_documents(unique, verify=False)):
            if number % 100 == 0:
                self._progress(number, self._dedup.documents, "decontaminating")
            pieces = decontaminate(document, keys, config, counters)
            tally.added += max(len(pieces) - 1, 0)
            if not pieces:
                reason = "evaluation text in most of it"
                tally.dropped[reason] += 1
                self._reject(document, tally.step, reason)
            for piece in pieces:
                tally.keep(piece)
                yield piece
        self.decontamination = {
            **counters.as_json(),
            "items": len(items),
            "items_seen": sorted(counters.seen),
            "keys": found,
            "common_keys_spared": dict(sorted(common.items())),
        }

    def _raw(self) -> Iterator[Document]:
        for path in _raw_files(self._source):
            for item in read_any(path, source=path.name.split(".")[0]):
                if isinstance(item, Damage):
                    where = path.relative_to(self._source).as_posix()
                    self._damage.append(f"{where}: {item.reason}")
                    self._read.quarantined += item.records
                    self._reject(Document(where, "", ""), self._read.step, item.reason)
                else:
                    self._read.keep(item)
                    yield item

    def _with_heldout(self, filtered: Path) -> Iterator[tuple[bool, Document]]:
        heldout = self._source / "heldout"
        if (heldout / MANIFEST).is_file():
            for document in read_documents(heldout):
                yield True, document
        for document in read_documents(filtered, verify=False):
            yield False, document

    def _verified(self, filtered: Path, pairs: Iterable[tuple[int, int]]) -> dict[tuple[int, int], float]:
        """The candidate pairs whose true Jaccard similarity reaches the threshold, with it."""
        config = self._config.dedup
        pairs = sorted(pairs)
        wanted = {index for pair in pairs for index in pair}
        sets = {
            index: shingles(document.text, size=config.shingle)
            for index, (_, document) in enumerate(self._with_heldout(filtered))
            if index in wanted
        }
        measured = {(a, b): jaccard(sets[a], sets[b]) for a, b in pairs}
        return {pair: similarity for pair, similarity in measured.items() if similarity >= config.threshold}

    def _reject(self, document: Document, step: str, reason: str, **detail: Any) -> None:
        row = {
            "id": document.id,
            "source": document.source,
            "step": step,
            "reason": reason,
            **detail,
            "text": document.text,
        }
        self._rejects.write(json.dumps(row, ensure_ascii=False).encode("utf-8", "replace") + b"\n")


def _raw_files(source: Path) -> list[Path]:
    folders = [source / name for name in (WARC_FOLDER, JSONL_FOLDER) if (source / name).is_dir()]
    if not folders:
        raise DataError(
            f"{source} is no harvest ({WARC_FOLDER}/ and {JSONL_FOLDER}/ are missing); run `trivium corpus harvest`"
        )
    filled = [folder for folder in folders if any(folder.iterdir())]
    if not filled:
        raise DataError(f"{source} holds no raw file in {WARC_FOLDER}/ or {JSONL_FOLDER}/; harvest again")
    return [path for folder in filled for path in input_files(folder)]


def _evaluation_items(source: Path) -> dict[str, str]:
    path = source / "evaluation_items.jsonl"
    if not path.is_file():
        return {}
    try:
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        return {str(row["id"]): str(row["text"]) for row in rows}
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} is damaged ({type(error).__name__}: {error}); harvest again") from None


def _scored(source: Path, out: Path) -> dict[str, Any]:
    path = source / "planted.json"
    if not path.is_file():
        return {}
    try:
        planted = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        raise DataError(f"{path} is not JSON: it was truncated or edited; harvest again") from None
    caught, honest = score(planted, _evaluation_items(source), out / DOCUMENTS, out / REJECTS)
    write_json(out / PLANTED, caught)
    write_json(out / HONEST, honest)
    return {"planted": caught, "honest": honest}
