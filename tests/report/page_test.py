import base64
import hashlib
import json
import os
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

from report.fake_run import HOSTILE, stations, write_run
from trivium.errors import DataError
from trivium.report.collect import collect, results
from trivium.report.figures import funnel
from trivium.report.page import closing_lines, figure_json, next_command, write_report
from trivium.report.page import render as render_with
from trivium.report.sections import sections

COMMAND = "trivium demo --data YOUR_TEXTS --out runs/mine"


def render(report):
    return render_with(report, COMMAND)


class Page(HTMLParser):
    """All elements with their attributes, the content of scripts, and the visible text."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.elements, self.scripts, self.text = [], [], []
        self._script = None
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append((dict(attrs), ""))

    def handle_data(self, data):
        if self.elements and self.elements[-1][0] == "script" and self.lasttag == "script" and self.cdata_elem:
            attrs, before = self.scripts[-1]
            self.scripts[-1] = (attrs, before + data)
        else:
            self.text.append(data)


@pytest.fixture
def report(tmp_path):
    return collect(write_run(tmp_path))


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """Return the page of the default report, rendered once."""
    return render(collect(write_run(tmp_path_factory.mktemp("run"))))


def test_report_does_not_overwrite_link_targets(tmp_path):
    mine, run = tmp_path / "letter", write_run(tmp_path / "run")
    mine.write_text("dear")
    for name in ("report.html", "report.json"):
        (run / name).symlink_to(mine)
        for unfinished in (f".{name}.partial", f".{name}.{os.getpid()}.partial"):
            (run / unfinished).symlink_to(mine)
    assert not any(written.is_symlink() for written in write_report(run))
    assert mine.read_text() == "dear"


def test_report_files_contain_the_collected_tree(tmp_path):
    page, data = write_report(write_run(tmp_path))
    assert (page.name, data.name) == ("report.html", "report.json")
    assert json.loads(data.read_text()) == json.loads(json.dumps(results(collect(tmp_path))))
    assert not list(tmp_path.glob(".*partial"))


def test_damaged_stage_keeps_previous_report(tmp_path):
    page, data = write_report(write_run(tmp_path))
    before = page.read_bytes(), data.read_bytes()
    (tmp_path / "curated" / "funnel.json").write_text("{")
    with pytest.raises(DataError, match="funnel"):
        write_report(tmp_path)
    assert (page.read_bytes(), data.read_bytes()) == before


def test_page_needs_no_network(text):
    page = Page(text)
    for tag, attrs in page.elements:
        assert tag not in ("link", "iframe", "img", "object", "embed", "base", "form")
        assert "src" not in attrs
        assert attrs.get("href", "#").startswith("#")
    (policy,) = [a["content"] for t, a in page.elements if a.get("http-equiv") == "Content-Security-Policy"]
    assert policy.startswith("default-src 'none';")
    assert "http" not in policy and "'unsafe-inline'" not in policy.split("script-src")[1].split(";")[0]
    styles = re.search(r"<style>(.*?)</style>", text, re.S).group(1)
    assert "url(" not in styles and "@import" not in styles


def test_policy_allows_exactly_the_pages_scripts(text):
    page = Page(text)
    policy = next(a["content"] for _, a in page.elements if "http-equiv" in a)
    run = [text for attrs, text in page.scripts if attrs.get("type") != "application/json"]
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in run]
    assert re.findall(r"'sha256-([^']+)'", policy) == hashes
    assert len(hashes) == 2


def test_figures_have_data_and_one_inlined_plotly(text):
    page = Page(text)
    holders = [a["data-figure"] for _, a in page.elements if "data-figure" in a]
    data = {a["id"]: json.loads(text) for a, text in page.scripts if a.get("type") == "application/json"}
    assert holders == list(data) and len(holders) == 21
    assert all(figure["data"] for figure in data.values())
    assert sum("plotly.js v" in text[:200] for _, text in page.scripts) == 1


def hostile(value):
    """Replace every string of the tree with a hostile one."""
    if isinstance(value, dict):
        return {k: hostile(v) for k, v in value.items()}
    if isinstance(value, list):
        return [hostile(v) for v in value]
    return value + HOSTILE if isinstance(value, str) else value


def test_hostile_text_is_escaped(tmp_path):
    """Every string that a stage can write, and every name that it can choose, contains an attack."""
    files = {name: hostile(content) for name, content in stations().items()}
    files["curated/planted.json"] = {HOSTILE: {"planted": 1, "caught": 1}}
    files["evaluation/results.json"]["tasks"] = {HOSTILE: stations()["evaluation/results.json"]["tasks"]["last_word"]}
    files["seconds.json"] = {HOSTILE: 1.0}
    clean = Page(render(collect(write_run(tmp_path / "clean"))))
    attacked = Page(render(collect(write_run(tmp_path / "attacked", **files))))
    kinds = [{(tag, *sorted(a)) for tag, a in page.elements} for page in (attacked, clean)]
    assert kinds[0] == kinds[1]
    count = [sum(tag == "script" for tag, _ in page.elements) for page in (attacked, clean)]
    assert count[0] == count[1]
    assert any(HOSTILE in text for text in attacked.text)


def test_samples_are_shown_as_generated(tmp_path):
    samples = [{"prompt": "a <b> & ", "continuation": HOSTILE}]
    page = Page(render(collect(write_run(tmp_path, **{"generate/samples.json": samples}))))
    assert "a <b> & " in page.text and HOSTILE in page.text


def test_empty_run_has_page_with_commands(tmp_path):
    page, _ = write_report(tmp_path)
    text = "".join(Page(page.read_text()).text)
    for verb in ("corpus curate", "train", "evaluate", "bias", "generate", "plan"):
        assert f"trivium {verb}" in text


def test_truncated_prompts_are_shown_next_to_scores(tmp_path):
    files = stations()
    scores = files["evaluation/results.json"]["tasks"]["last_word"]
    scores["4"] = scores["4"] | {"truncated_fraction": 0.0625}
    (evaluation,) = [s for s in sections(collect(write_run(tmp_path, **files))) if s.name == "evaluation"]
    table = evaluation.tables[0]
    assert table.headings[-1] == "prompts cut" and [row[-1] for row in table.rows] == ["unknown", "6.2%"]


def test_page_supports_phones_and_dark_mode(text):
    assert 'name="viewport" content="width=device-width, initial-scale=1"' in text
    assert "@media screen and (prefers-color-scheme: dark)" in text


def test_closing_lines_state_results_and_next_command(report):
    lines = closing_lines(report, COMMAND)
    assert any("✓" in line and "resumed in another layout" in line for line in lines)
    assert any("tiny" in line for line in lines) and any("one machine" in line for line in lines)
    assert lines[-1] == f"Next: {COMMAND}"
    shown, open_ = lines.index("What this run has shown"), lines.index("What it has not")
    assert all("✓" in line for line in lines[shown + 1 : open_])
    assert not any("✓" in line for line in lines[open_:])


def test_closing_lines_of_empty_run_claim_nothing(tmp_path):
    assert not any("✓" in line for line in closing_lines(collect(tmp_path), COMMAND))


def test_next_command_uses_a_new_directory(report, tmp_path):
    run = tmp_path / "some where" / "first"
    assert next_command(report, run).endswith(f"--data YOUR_TEXTS --out '{run.parent / 'mine'}'")
    (run.parent / "mine").mkdir(parents=True)
    assert next_command(report, run).endswith("mine-2'")
    assert next_command(report, run.parent / "mine", program=".venv/bin/trivium").startswith(".venv/bin/trivium demo")


def test_next_command_finishes_unfinished_run(tmp_path):
    report = collect(write_run(tmp_path, **{"resume/proof.json": None}))
    assert next_command(report, Path("runs/demo")) == "trivium demo --out runs/demo"


def test_next_command_of_own_run_continues_updates_or_uses_it(report):
    report |= {"planted": None, "outdated": {}}
    assert next_command(report, Path("my run")) == "trivium serve 'my run'"
    report["evaluation"] = None
    assert next_command(report, Path("my run")) == "trivium evaluate --out 'my run'"
    report["provenance"]["tokens"] = {"verb": "tune"}
    assert next_command(report, Path("my run")) == "trivium chat 'my run'"
    report["outdated"] = {"evaluation": "training"}
    assert next_command(report, Path("my run")) == "trivium evaluate --out 'my run'"
    report["training"]["finished"] = False
    assert next_command(report, Path("my run")) == "trivium train --out 'my run'"


def test_outdated_section_names_its_command(report):
    report["outdated"] = {"bias": "training"}
    text = " ".join(" ".join(Page(render(report)).text).split())
    assert text.count("Outdated.") == 1
    assert "This is of another training than this report's; `trivium bias` does it again." in text
    assert next_command(report, Path("runs/demo")) == "trivium demo --out runs/demo"


def test_section_of_older_checkpoint_names_both_steps(report):
    report["older"] = {name: {"step": 1000, "newest": 2000} for name in ("tasks", "incontext", "bias")}
    report["older"]["bias_series"] = {"step": 2000, "newest": 2000}
    text = " ".join(" ".join(Page(render(report)).text).split())
    for verb in ("evaluate RUN", "incontext RUN", "bias"):
        said = f"of the checkpoint of step 1,000, and the newest is of step 2,000; `trivium {verb}` does it again."
        assert said in text
    assert "This is of the checkpoint of step 2,000 of another training than this report's" in text
    assert text.count("Outdated.") == 4


def test_unfinished_training_is_shown_without_claims(tmp_path):
    begun = {"plan": {"layout": {"tensor": 2}}, "training": {"steps": 9}}
    failed = json.dumps({"event": "rank failed", "step": 2, "cause": HOSTILE})
    report = collect(
        write_run(
            tmp_path,
            **{"training/summary.json": None, "training/run.json": begun, "training/events.jsonl": failed + "\n"},
        )
    )
    page = Page(render(report))
    text = " ".join(" ".join(page.text).split())
    assert "step 3 of 9" in text and f"failed: {HOSTILE}" in text
    assert next_command(report, tmp_path) == f"trivium demo --out {tmp_path}"


OWN = {"curated/planted.json": None, "curated/honest.json": None, "resume/proof.json": None}


def test_own_run_has_a_template_of_its_own(tmp_path):
    """The demo's page is about the paper's path, planted junk and the kill; that of another run is about the model."""
    demo = " ".join(Page(render(collect(write_run(tmp_path / "demo")))).text)
    own = " ".join(Page(render_with(collect(write_run(tmp_path / "own", **OWN)), COMMAND, f"mine {HOSTILE}")).text)
    for words in ("MT-NLG 530B paper", "planted junk", "kill", "What this run has shown"):
        assert words in demo and words not in own
    assert f"mine {HOSTILE}" in own and "No results yet of:" in own and "trivium prove" in own


def test_cards_come_first_and_tables_are_folded(text):
    order = [text.index(part) for part in ('class="cards"', 'class="pictures"', 'class="folded"', "<table")]
    assert order == sorted(order)
    page = Page(text)
    folded = [dict(a) for tag, a in page.elements if tag == "details"]
    assert folded and not any("open" in a for a in folded)


def test_failed_claim_is_unfolded(report):
    report["resume_proof"]["max_loss_difference"] = 1.0
    claims = [a for tag, a in Page(render(report)).elements if tag == "details" and a.get("id") == "claims"]
    assert [("open" in a) for a in claims] == [True]


def test_own_run_ends_with_its_figures(tmp_path):
    report = collect(write_run(tmp_path, **OWN))
    assert (
        closing_lines(report, COMMAND)[0].split()
        == "Validation loss 5.100 perplexity 164, 1.30 nats below token frequencies".split()
    )


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_script_draws_every_figure(text, tmp_path):
    """Run in node with a minimal document and a recorder in place of Plotly."""
    page = Page(text)
    data = {a["id"]: content for a, content in page.scripts if a.get("type") == "application/json"}
    script = [content for a, content in page.scripts if not a][-1]
    stub = f"""
    const texts = {json.dumps(data)};
    const holders = Object.keys(texts).map((id) => ({{ dataset: {{ figure: id }}, closest: () => null }}));
    globalThis.addEventListener = () => {{}};
    globalThis.matchMedia = () => ({{ addEventListener() {{}} }});
    globalThis.getComputedStyle = () => ({{ getPropertyValue: (name) => name }});
    globalThis.document = {{
      documentElement: {{}},
      addEventListener() {{}},
      querySelectorAll: () => holders,
      getElementById: (id) => ({{ textContent: texts[id] }}),
    }};
    let drawn = 0, painted = 0;
    globalThis.Plotly = {{
      newPlot: async (holder, data, layout) => {{ drawn += data.length > 0; holder.layout = layout; }},
      relayout: async (holder, change) => {{ painted += change["font.color"] === "--text"; }},
    }};
    {script}
    setTimeout(() => console.log(drawn, painted), 10);
    """
    file = Path(tmp_path) / "page.js"
    file.write_text(stub)
    done = subprocess.run(["node", str(file)], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["21", "21"], done.stderr


def test_figure_json_cannot_close_its_element(report):
    steps = [{"step": HOSTILE, "documents": 1, "bytes": 1, "dropped": {HOSTILE: 1}}]
    text = str(figure_json(funnel(steps)))
    assert "<" not in text and json.loads(text)["data"][0]["x"] == [1]
