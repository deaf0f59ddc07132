import base64
import hashlib
import json
import re
import shutil
import subprocess

import pytest

from report.fake_run import HOSTILE
from trivium.report.gantt import Chart, Lane, Moved, Titled, drawing, render_chart, summary, write_chart


def chart(**changed):
    lanes = (
        Lane("pipeline 0", [("F", 0, 0, 0.0, 1.0), ("B", 0, 0, 5.0, 7.0)], [(0.0, 10), (1.0, 30), (7.0, 10)]),
        Lane("pipeline 1", [("F", 0, 1, 1.5, 2.5), ("B", 0, 1, 2.5, 4.5)], [(0.0, 10), (2.5, 25), (4.5, 10)]),
    )
    moved = [Moved(0, 1, 1.0, 1.5), Moved(1, 0, 4.5, 5.0)]
    tables = [Titled("Parts", ("rank", "compute"), [("0", "3 s")])]
    whole = {"title": "A plan", "text": ["layout"], "lanes": lanes, "moved": moved, "tables": tables}
    return Chart(**{**whole, "memory_limit": 100.0, **changed})


def parts(text):
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S).group(1)
    script = re.search(r"<script>(.*?)</script>", text, re.S).group(1)
    policy = re.search(r'Content-Security-Policy" content="(.*?)"', text).group(1)
    return json.loads(data), script, policy


def test_page_contains_all_spans_transfers_and_memory():
    data, _, _ = parts(render_chart(chart()))
    assert data == json.loads(json.dumps(drawing(chart())))
    assert [tuple(s) for s in data["lanes"][0]["spans"]] == list(chart().lanes[0].spans)
    assert data["moved"] == [[0, 1, 1.0, 1.5], [1, 0, 4.5, 5.0]]
    assert data["lanes"][1]["memory"] == [[0, 10], [2.5, 25], [4.5, 10]] and data["duration"] == 7


def test_table_agrees_with_drawing():
    assert summary(chart()) == [("pipeline 0", "3 s", "57.1%", "30 B"), ("pipeline 1", "3 s", "57.1%", "25 B")]


def test_page_needs_no_network_and_runs_only_its_script():
    text = render_chart(chart())
    assert not re.search(r"(src|href)\s*=\s*[\"']?(https?:|//)", text)
    _, script, policy = parts(text)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy.replace("&#39;", "'").startswith(f"default-src 'none'; script-src 'sha256-{digest}';")
    assert "unsafe-eval" not in policy


def test_hostile_text_is_escaped():
    bad = chart(
        title=HOSTILE,
        text=[HOSTILE],
        lanes=[Lane(HOSTILE, [("F", 0, 0, 0.0, 1.0)])],
        moved=[],
        tables=[Titled(HOSTILE, (HOSTILE,), [(HOSTILE,)])],
    )
    assert len(re.findall("<script", render_chart(bad))) == len(re.findall("<script", render_chart(chart())))
    assert parts(render_chart(bad))[0]["lanes"][0]["name"] == HOSTILE


def test_page_of_sixteen_thousand_actions_has_few_megabytes():
    spans = [("F", m, 0, m * 0.1234567, (m + 1) * 0.1234567) for m in range(480)]
    lanes = [Lane(f"pipeline {p}", spans, [(m * 0.1234567, m * 2**30) for m in range(480)]) for p in range(35)]
    assert len(render_chart(chart(lanes=lanes, moved=[]))) < 4e6


def test_page_is_replaced_atomically(tmp_path):
    write_chart(tmp_path / "plan.html", chart())
    assert (tmp_path / "plan.html").read_text().startswith("<!DOCTYPE html>")
    assert [p.name for p in tmp_path.iterdir()] == ["plan.html"]


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_script_draws_every_span_and_its_tooltip(tmp_path):
    """Run in node with a canvas that records drawing calls."""
    data, script, _ = parts(render_chart(chart()))
    stub = f"""
    const drawn = {{}}, on = {{}};
    const count = (name) => (drawn[name] = (drawn[name] || 0) + 1);
    const called = {{ fillRect: (o) => count(o.fillStyle), lineTo: () => count("lines") }};
    const context = new Proxy({{}}, {{
      get: (o, k) => (k in o ? o[k] : () => called[k] && called[k](o)),
      set: (o, k, v) => ((o[k] = v), true),
    }});
    const element = () => ({{
      style: {{}},
      append() {{}},
      addEventListener(kind, f) {{ on[kind] = f; }},
      getContext: () => context,
      clientWidth: 792,
      getBoundingClientRect: () => ({{ left: 0, top: 0 }}),
      setPointerCapture() {{}},
      textContent: "",
    }});
    const elements = {{ data: {{ textContent: {json.dumps(json.dumps(data))} }} }};
    globalThis.devicePixelRatio = 1;
    globalThis.addEventListener = () => 0;
    globalThis.matchMedia = () => ({{ addEventListener() {{}} }});
    globalThis.getComputedStyle = () => ({{ getPropertyValue: () => "#111" }});
    globalThis.document = {{
      documentElement: {{}},
      createElement: element,
      getElementById: (id) => (elements[id] ||= element()),
    }};
    {script}
    on.pointermove({{ clientX: 92 + 600 / 14, clientY: 30 }});
    console.log(JSON.stringify([drawn["#0072B2"], drawn["#E69F00"], drawn.lines, elements.told.textContent]));
    """
    file = tmp_path / "chart.js"
    file.write_text(stub)
    done = subprocess.run(["node", str(file)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    forwards, backwards, lines, told = json.loads(done.stdout)
    assert (forwards, backwards, lines) == (2, 2, 2)
    assert "forward of micro-batch 0, stage 0" in told and "holds" in told
