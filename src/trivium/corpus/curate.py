"""Curation: a harvest's raw files become documents fit to train on, and every loss is accounted for.

Writes documents/, rejects.jsonl.gz, funnel.json, blend.json, decontamination.json; planted.json and honest.json
when the harvest says what it planted. There are two passes over the texts, with a comparison of all documents between
them. Each is a list of tasks, which an engine runs wherever it likes:

    filter_file: a raw file → parts      decide: all parts → fates      clean_shard: some parts → a shard
"""

from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from trivium.corpus.config import CurateConfig
from trivium.corpus.dedup.comparison import decide
from trivium.corpus.engine import Engine, Here
from trivium.corpus.first_pass import begin_curation, evaluation_keys, filter_file, index_heldout
from trivium.corpus.kept import forget_unused
from trivium.corpus.parts import CurationJob, Part, list_parts
from trivium.corpus.publish.output import REJECTS, blend, publish, summed
from trivium.corpus.publish.score import score
from trivium.corpus.second_pass import SHARDS, clean_shard, find_common, find_marked, shard_groups
from trivium.corpus.select.evaluation_texts import evaluation_items, evaluation_texts
from trivium.corpus.store import DOCUMENTS
from trivium.corpus.warm_up import warm_up
from trivium.corpus.work import run_streams
from trivium.errors import DataError
from trivium.progress import Progress, silent
from trivium.provenance import discard, write_json
from trivium.untrusted import read_json

BLEND, DECONTAMINATION, PLANTED, HONEST = "blend.json", "decontamination.json", "planted.json", "honest.json"


def curate(
    config: CurateConfig,
    source: Path,
    out: Path,
    *,
    seed: int,
    progress: Progress = silent,
    engine: Engine | None = None,
    work: Path | None = None,
    kept: Path | None = None,
) -> dict[str, Any]:
    """Curate the harvest at `source` into the existing folder `out`. Return what was written about it.

    engine: where the work runs; the result does not depend on it. work: the folder of finished pieces, from which an
    interrupted curation continues; whoever names it deletes it. kept: a folder for extracted and filtered texts, which
    later curations use again; the result does not depend on it.
    """
    runner = engine or Here()
    warm_up(progress)
    job = begin_curation(work or out / ".work", source, config, seed=seed, kept=kept)
    index_heldout(job)
    run_streams(runner, filter_file, job, progress, "extracting and filtering")
    parts = list_parts(job)
    _require_documents(job, parts)
    decide(job, parts, runner, lambda done: progress(done, None, "finding near duplicates"))
    common = find_common(job, parts)
    find_marked(job, parts)
    shards = [str(number) for number in range(len(shard_groups(job, parts)))]
    runner.map(partial(clean_shard, str(job.work)), shards, lambda done: progress(done, len(shards), "decontaminating"))
    result = _publish(job, parts, out, common, config)
    if work is None:
        discard(job.work.parent)
    if kept is not None:
        forget_unused(kept, source, config, seed=seed)
    return {**result, **_scored(source, out)}


def funnel_lines(result: dict[str, Any]) -> list[str]:
    """Return lines for a terminal: the funnel, and what became of the planted junk."""
    lines = [f"{'step':<18}{'documents':>10}{'MB':>9}   dropped"]
    for entry in result["funnel"]:
        reasons = sorted(entry["dropped"].items(), key=lambda pair: (-pair[1], pair[0]))
        parts = [f"{count} {reason}" for reason, count in reasons[:3]]
        if len(reasons) > 3:
            parts.append(f"{sum(count for _, count in reasons[3:])} other")
        parts += [f"{entry['quarantined']} unreadable"] if entry["quarantined"] else []
        parts += [f"(+{entry['added']} by splitting)"] if entry["added"] else []
        note = ", ".join(parts)
        lines.append(f"{entry['step']:<18}{entry['documents']:>10}{entry['bytes'] / 1e6:>9.2f}   {note}".rstrip())
    if result.get("priority_absent"):
        names = ", ".join(result["priority_absent"])
        lines.append(f"curate.dedup.priority names sources of which no document is left: {names}")
    for kind, counts in (result.get("planted") or {}).items():
        share = 100 * counts["caught"] / max(counts["planted"], 1)
        lines.append(f"planted {kind:<16} {counts['caught']:>5} of {counts['planted']:>5} caught ({share:.1f} %)")
    honest = result.get("honest")
    if honest:
        share = 100 * honest["lost"] / max(honest["documents"], 1)
        by = ", ".join(f"{count} {step}" for step, count in honest["lost_by"].items())
        lines.append(f"honest documents lost   {honest['lost']} of {honest['documents']} ({share:.2f} %) {by}".rstrip())
    return lines


def _require_documents(job: CurationJob, parts: Sequence[Part]) -> None:
    """Raise DataError if filtering left no document."""
    if any(part.documents for part in parts[1:]):
        return
    counts = [part.counts() for part in parts[1:]]
    funnel = summed(one["tallies"] for one in counts)
    if funnel[0]["documents"] == 0:
        damage = [line for one in counts for line in one["damage"]]
        what = damage[0] if damage else "its files hold no document"
        raise DataError(f"{job.source} gives no document: {what}; harvest again")
    raise _nothing_left(job, funnel)


def _nothing_left(job: CurationJob, funnel: Sequence[dict[str, Any]]) -> DataError:
    """Return the error that says where all documents went."""
    read, *steps = funnel
    worst = max(steps, key=lambda tally: sum(tally["dropped"].values()))
    remedies = [
        f"--set curate.{worst['remedies'][reason]}" for reason in worst["dropped"] if reason in worst["remedies"]
    ]
    remedy = f"loosen its limits ({' '.join(remedies)})" if remedies else "loosen corpus thresholds"
    return DataError(
        f"none of the {read['documents']} documents of {job.source} is left after '{steps[-1]['step']}'; most were "
        f"dropped by '{worst['step']}' ({', '.join(worst['dropped'])}): {remedy} or give more text"
    )


def _publish(
    job: CurationJob, parts: Sequence[Part], out: Path, common: Counter[str], config: CurateConfig
) -> dict[str, Any]:
    """Join the pieces to the output of the curation."""
    shards = [job.path(SHARDS, f"{number:05d}") for number in range(len(shard_groups(job, parts)))]
    manifest, funnel, counts = publish(shards, out, rejected_before=[part.folder for part in parts[1:]])
    if manifest["documents"] == 0:
        raise _nothing_left(job, funnel)
    weights = blend(manifest["sources"], config.blend)
    cut = _decontamination(job, counts, common)
    write_json(out / BLEND, weights)
    write_json(out / DECONTAMINATION, cut)
    absent = [source for source in config.dedup.priority if source not in manifest["sources"]]
    return {"funnel": funnel, "blend": weights, "decontamination": cut, "priority_absent": absent}


def _decontamination(job: CurationJob, counts: Sequence[dict[str, Any]], common: Counter[str]) -> dict[str, Any]:
    figures: Counter[str] = Counter()
    for one in counts:
        figures.update(one["decontamination"])
    keys = evaluation_keys(job)
    return {
        **figures,
        "items": len(evaluation_texts(Path(job.source), job.config)),
        "items_seen": sorted(keys.items_with({key for one in counts for key in one["keys"]})),
        "keys": len(keys),
        "common_keys_spared": dict(sorted(common.items())),
    }


def _scored(source: Path, out: Path) -> dict[str, Any]:
    path = source / PLANTED
    if not path.is_file():
        return {}
    try:
        planted = read_json(path)
    except ValueError:
        raise DataError(f"{path} is not JSON: it was truncated or edited; harvest again") from None
    caught, honest = score(planted, evaluation_items(source), out / DOCUMENTS, out / REJECTS)
    write_json(out / PLANTED, caught)
    write_json(out / HONEST, honest)
    return {"planted": caught, "honest": honest}
