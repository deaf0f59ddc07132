"""The curation station: a harvest's raw files → documents fit to train on, with every loss accounted for.

Writes documents/, rejects.jsonl.gz, funnel.json, blend.json, decontamination.json; planted.json and honest.json
when the harvest says what it planted. The pipeline is two passes over the texts with a comparison of all
documents between them; each is a list of tasks that an engine does wherever it likes:

    filter_file, one a raw file → parts      decide: all parts → fates      clean_shard, one a shard → shards
"""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from trivium.corpus.config import CurateConfig
from trivium.corpus.dedup.comparison import decide
from trivium.corpus.engine import Engine, Here
from trivium.corpus.first_pass import Part, evaluation_keys, filter_file, index_heldout, list_parts
from trivium.corpus.job import HELDOUT, Job, begin_job, evaluation_items, evaluation_texts
from trivium.corpus.judged import REJECTS as PART_REJECTS
from trivium.corpus.parts import counts_of
from trivium.corpus.publish.blend import blend
from trivium.corpus.publish.score import score
from trivium.corpus.publish.shards import join_packed, publish_shards, summed
from trivium.corpus.read.inputs import DOCUMENTS
from trivium.corpus.reuse import forget_unused
from trivium.corpus.second_pass import SHARDS, clean_shard, find_common, find_marked, shard_groups
from trivium.corpus.warm_up import warm_up
from trivium.errors import DataError
from trivium.progress import Progress, silent
from trivium.provenance import discard, write_json
from trivium.untrusted import read_json

REJECTS, FUNNEL, BLEND = "rejects.jsonl.gz", "funnel.json", "blend.json"
DECONTAMINATION, PLANTED, HONEST = "decontamination.json", "planted.json", "honest.json"


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
    """Curate the harvest at `source` into the existing folder `out`; returns what it wrote about itself.

    `engine`: where the work runs; the result does not depend on it. `work`: the folder of finished pieces,
    from which an interrupted curation goes on; who names it deletes it. `kept`: a folder where what was found out of
    each text is kept for the next curation, and what an earlier one kept is used again; the result does not depend on
    it.
    """
    here = engine or Here()
    warm_up(progress)
    job = begin_job(work or out / ".work", source, config, seed=seed)
    parts = _filter(job, here, progress, kept)
    _require_documents(job, parts)
    decide(job, parts, here, _told(progress, None, "finding near duplicates"))
    common = find_common(job, parts)
    find_marked(job, parts)
    numbers = [str(number) for number in range(len(shard_groups(job, parts)))]
    here.map(partial(clean_shard, str(job.work)), numbers, _told(progress, len(numbers), "decontaminating"))
    result = _publish(job, parts, out, common, config)
    if work is None:
        discard(job.work.parent)
    if kept is not None:
        forget_unused(kept, source, config, seed=seed)
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
    if result.get("priority_absent"):
        names = ", ".join(result["priority_absent"])
        lines.append(f"curate.dedup.priority names sources of which no document is left: {names}")
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


def _filter(job: Job, engine: Engine, progress: Progress, kept: Path | None) -> list[Part]:
    index_heldout(str(job.work), HELDOUT)
    numbers = [str(number) for number in range(len(job.files))]
    told = _told(progress, len(numbers), "extracting and filtering")
    engine.map(partial(filter_file, str(job.work), str(kept.absolute()) if kept else ""), numbers, told)
    return list_parts(job)


def _told(progress: Progress, total: int | None, note: str) -> Callable[[int], None]:
    return lambda done: progress(done, total, note)


def _require_documents(job: Job, parts: Sequence[Part]) -> None:
    """DataError when filtering left no document."""
    if any(part.documents for part in parts[1:]):
        return
    counts = [part.counts() for part in parts[1:]]
    funnel = summed(one["tallies"] for one in counts)
    if funnel[0]["documents"] == 0:
        damage = [line for one in counts for line in one["damage"]]
        what = damage[0] if damage else "its files hold no document"
        raise DataError(f"{job.source} gives no document: {what}; harvest again")
    raise _nothing_left(job, funnel)


def _nothing_left(job: Job, funnel: Sequence[dict[str, Any]]) -> DataError:
    """What to say when no document is left: where they went."""
    read, *steps = funnel
    worst = max(steps, key=lambda tally: sum(tally["dropped"].values()))
    remedies = [
        f"--set curate.{worst['remedies'][reason]}"
        for reason in worst["dropped"]
        if reason in worst["remedies"]
    ]
    remedy = f"loosen its limits ({' '.join(remedies)})" if remedies else "loosen corpus thresholds"
    return DataError(
        f"none of the {read['documents']} documents of {job.source} is left after '{steps[-1]['step']}'; most were "
        f"dropped by '{worst['step']}' ({', '.join(worst['dropped'])}): {remedy} or give more text"
    )


def _publish(
    job: Job, parts: Sequence[Part], out: Path, common: Counter[str], config: CurateConfig
) -> dict[str, Any]:
    """Put the pieces together as the station's output."""
    folders = [job.path(SHARDS, f"{number:05d}") for number in range(len(shard_groups(job, parts)))]
    counts = list(map(counts_of, folders))
    entries = [one["entry"] for one in counts]
    manifest = publish_shards(zip(folders, entries, strict=True), out / DOCUMENTS)
    join_packed(
        [*(part.folder / PART_REJECTS for part in parts[1:]), *(f / PART_REJECTS for f in folders)],
        out / REJECTS,
    )
    first, second = (
        summed(one["tallies"] for one in many) for many in ([p.counts() for p in parts[1:]], counts)
    )
    if manifest["documents"] == 0:
        raise _nothing_left(job, first + second)
    result: dict[str, Any] = {
        "funnel": first + second,
        "blend": blend(manifest["sources"], config.blend),
        "decontamination": _decontamination(job, counts, common),
    }
    for name, key in ((FUNNEL, "funnel"), (BLEND, "blend"), (DECONTAMINATION, "decontamination")):
        write_json(out / name, result[key])
    absent = [source for source in config.dedup.priority if source not in manifest["sources"]]
    return {**result, "priority_absent": absent}


def _decontamination(job: Job, counts: Sequence[dict[str, Any]], common: Counter[str]) -> dict[str, Any]:
    figures: Counter[str] = Counter()
    for one in counts:
        figures.update(one["decontamination"])
    keys = evaluation_keys(job)
    return {
        **figures,
        "items": len(evaluation_texts(job)),
        "items_seen": sorted(keys.items_with({key for one in counts for key in one["keys"]})),
        "keys": len(keys),
        "common_keys_spared": dict(sorted(common.items())),
    }


def _scored(source: Path, out: Path) -> dict[str, Any]:
    path = source / "planted.json"
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
