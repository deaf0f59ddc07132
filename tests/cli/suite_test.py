"""`trivium suite`: a small suite from tokens to page, and what happens when it is interrupted or mistyped."""

import html
import json
import re
import shlex
from pathlib import Path

import pytest

from chaos.scene import VOCABULARY, write_tokens
from trivium.checkpoint.durable import remove
from trivium.checkpoint.format import step_name
from trivium.provenance import STAMP, write_json
from trivium.training.metrics import read

SETS = {
    "machine": "here",
    "plan.model.layers": 1,
    "plan.model.vocabulary": VOCABULARY,
    "plan.model.sequence": 8,
    "plan.batch.sequences": 4,
    "plan.batch.micro": 4,
    "plan.precision.weights": "fp32",
    "plan.compiled": "false",
    "plan.recompute.mode": "none",
    "plan.zero": 0,
    "training.steps": 3,
    "training.save": "waiting",
    "training.validation_samples": 4,
    "bias.occupations": 2,
    "bias.permutations": 20,
    "bias.resamples": 20,
}
WORDS = ["suite", "pythia", "--sizes", "31m,14m", "--out", "suite", "--ranks", "1"]
WORDS += [word for field, value in SETS.items() for word in ("--set", f"{field}={value}")]


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    folder = write_tokens(tmp_path)
    write_json(folder / STAMP, {"key": "tokens"})
    return folder


@pytest.fixture
def hans(tmp_path: Path) -> Path:
    """A few published questions."""
    rows = [
        {
            "premise": f"The {who} slept .",
            "hypothesis": f"The {who} {did} .",
            "label": label,
            "gold_label": ("entailment", "non-entailment")[label],
            "heuristic": "constituent",
            "subcase": "s",
            "pairID": f"{who}{label}",
        }
        for who in ("judge", "actor", "doctor")
        for label, did in enumerate(("slept", "sat"))
    ]
    (tmp_path / "tasks/hans").mkdir(parents=True)
    (tmp_path / "tasks/hans/dev.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path / "tasks"


@pytest.mark.broad
def test_all_sizes_read_the_same_batches_and_an_interrupted_suite_goes_on(
    call, tokens: Path, hans: Path, tmp_path: Path
) -> None:
    published = f"training.evaluation={{data: {hans}, tasks: hans, shots: [0, 1]}}"

    def again():
        ended = call(*WORDS, "--set", published, "--data", str(tokens))
        assert ended.returncode == 0, ended.stderr
        return ended

    again()
    out = tmp_path / "suite"
    hashes = [
        [r["batch_hash"] for r in read(out / size / "training/metrics.jsonl") if "batch_hash" in r]
        for size in ("14m", "31m")
    ]
    assert hashes[0] == hashes[1] and len(set(hashes[0])) == 3

    found = json.loads((out / "suite.json").read_text())
    assert found["checkpoints"] == [0, 1, 2, 3] and found["order"] == {"compared": 3, "differ": []}
    assert [(s["size"], [p["step"] for p in s["probes"]]) for s in found["sizes"]] == [
        ("14m", [0, 1, 2, 3]),
        ("31m", [0, 1, 2, 3]),
    ]
    last = found["sizes"][0]["probes"][-1]
    assert last["memorisation"]["seen"]["n"] == 12 and last["memorisation"]["k"] == 4 and last["bias"]
    assert list(last["tasks"]["hans"]) == ["0", "1"] and last["tasks"]["hans"]["0"]["n"] == 6
    assert last["incontext"]["task"] == "hans" and list(last["incontext"]["shots"]) == ["0", "1"]

    page = (out / "suite.html").read_text()
    assert "<h1>Pythia: 14m, 31m</h1>" in page and "their hashes agree in all 3 steps" in page
    (command,) = re.findall("<code>(trivium suite .*?)</code>", page)
    typed = shlex.split(html.unescape(command))
    sets = [f"--set={field}={value}" for field, value in SETS.items()]
    assert typed[1:] == [*WORDS[:4], "--data", str(tokens), *WORDS[4:8], *sets, f"--set={published}"]
    assert "src=" not in page.split("<script>")[0] and 'id="memorisation-1"' in page

    # What an interruption leaves: a size that lacks its end, and a checkpoint that was not examined.
    files = {p: p.stat().st_mtime_ns for p in out.glob("*/probes/*.json")}
    remove(out / "31m/training/checkpoints" / step_name(3))
    (out / "14m/probes" / f"{step_name(2)}.json").unlink()
    ended = again()
    assert (
        "train: up to date in suite/14m/training" in ended.stdout and f"{step_name(3)} is gone; resumes" in ended.stdout
    )
    changed = {str(p.relative_to(out)) for p, written in files.items() if p.stat().st_mtime_ns != written}
    assert changed == {f"14m/probes/{step_name(2)}.json"}
    assert json.loads((out / "suite.json").read_text())["sizes"] == found["sizes"]


def test_a_suite_without_data_or_of_other_data_is_refused_before_anything_is_written(call, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("Some words.\n\n" * 200)
    for words, code, says in (
        ([], 2, "--data is missing"),
        (["--data", "nowhere"], 4, "nowhere does not exist"),
        (["--sizes", "144m"], 2, "did you mean '14m'"),
        (["--data", "text.txt", "--set", "tokens.tokenizer=hf:org"], 2, "hf:ORG/NAME"),
    ):
        ended = call(*WORDS[:2], *(words if "--sizes" in words else [*WORDS[2:], *words]))
        assert ended.returncode == code and says in ended.stderr
    assert not (tmp_path / "suite").exists()


def test_a_dry_run_lists_parameters_checkpoints_and_price_and_writes_nothing(call, tmp_path: Path) -> None:
    ended = call("suite", "pythia", "--sizes", "14m,12b", "--out", "suite", "--dry-run")
    assert ended.returncode == 0, ended.stderr
    assert "14,067,712" in ended.stdout and "11,846,072,320" in ended.stdout and "154 checkpoints" in ended.stdout
    assert not (tmp_path / "suite").exists()
