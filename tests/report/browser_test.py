"""The report in a real browser: it fits the window, can be read in light and dark mode, and its scripts work."""

import json
import os
import time
from pathlib import Path

import pytest

from report.browser import chromium, find_chromium
from report.fake_run import METRICS, write_run
from trivium.report.page import write_report

pytestmark = [
    pytest.mark.broad,
    pytest.mark.skipif(find_chromium() is None, reason="no Chromium found; install one, or set CHROMIUM to its path"),
]
WINDOWS = {
    "light": (1280, 800, False),
    "dark": (1280, 800, True),
    "phone": (390, 844, False),
    "phone-dark": (390, 844, True),
}

# Every visible text with its contrast against the colour behind it, as WCAG 2.2 defines both. Texts inside of bars are
# left out, because Plotly chooses their colour by the bar's.
CONTRASTS = """
(() => {
  const rgba = (text) => {
    const [r, g, b, a] = text.match(/[\\d.]+/g).map(Number);
    return { channels: [r, g, b], alpha: a === undefined ? 1 : a };
  };
  const over = (top, below) => top.channels.map((c, n) => c * top.alpha + below[n] * (1 - top.alpha));
  const behind = (element) => {
    if (!element) return [255, 255, 255];
    const own = rgba(getComputedStyle(element).backgroundColor);
    return own.alpha === 1 ? own.channels : over(own, behind(element.parentElement));
  };
  const luminance = (channels) => {
    const [r, g, b] = channels.map((c) => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const found = [], walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement, text = walker.currentNode.textContent.trim();
    if (!text || !element.checkVisibility() || element.closest("script, style, .bartext-inside")) continue;
    const style = getComputedStyle(element), below = behind(element);
    const paint = rgba(element instanceof SVGElement ? style.fill : style.color);
    const [light, dark] = [luminance(over(paint, below)), luminance(below)].sort((a, b) => b - a);
    found.push([text.slice(0, 60), (light + 0.05) / (dark + 0.05)]);
  }
  return found;
})()
"""
CARDS = """
[...document.querySelectorAll(".card")].map((card) => card.getBoundingClientRect())
  .map(({ left, right, top, bottom }) => ({ left, right, top, bottom }))
"""
FIGURES = """
[...document.querySelectorAll("[data-figure]")].filter((holder) => holder.checkVisibility())
  .map((holder) => !!holder.querySelector(".main-svg") && holder.clientWidth > 200)
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    with chromium(find_chromium(), tmp_path_factory.mktemp("profile")) as tab:
        yield tab


@pytest.fixture(scope="module", params=["demo", "run"])
def report(request, tmp_path_factory):
    """Return the page of a demo, or of a run on the user's own text."""
    lines = [{**METRICS[0], "step": n, "tokens": 1024 * n, "loss": 6 - n / 100, "tokens_per_second": 1e4 + n,
              "model_flops_per_second": 3e9, "sequences": 8} for n in range(1, 200)]  # fmt: skip
    files = {"training/metrics.jsonl": "".join(json.dumps(line) + "\n" for line in (*METRICS, *lines))}
    if request.param == "run":
        files |= dict.fromkeys(("curated/planted.json", "curated/honest.json", "resume/proof.json"))
    return write_report(write_run(tmp_path_factory.mktemp(request.param), **files))[0]


@pytest.mark.parametrize("window", WINDOWS)
def test_report_can_be_read_in_a_browser(page, report, window, tmp_path):
    width, height, dark = WINDOWS[window]
    page.problems.clear()
    page.open(report, width=width, height=height, dark=dark)
    folder = Path(os.environ.get("SCREENSHOTS", tmp_path))
    page.screenshot(folder / f"{report.parent.name}-{window}.png")
    cards = page.run(CARDS)
    assert len(cards) == 8
    assert all(0 <= c["left"] < c["right"] <= width and 0 <= c["top"] < c["bottom"] <= height for c in cards)
    for part in ("as loaded", "with everything unfolded"):
        if part != "as loaded":
            page.run("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
            page.settle()
        assert page.run("document.documentElement.scrollWidth") <= width, part
        drawn = page.run(FIGURES)
        assert drawn and all(drawn), part
        contrasts = page.run(CONTRASTS)
        assert len(contrasts) > 30 and not [c for c in contrasts if c[1] < 4.5], part
    assert page.problems == []
    brightness = page.run("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)[0]")
    assert (brightness < 60) == dark


@pytest.mark.skipif("PYTEST_XDIST_WORKER" in os.environ, reason="beside other workers Chromium does not report them")
def test_browser_reports_problems(page, tmp_path):
    """The harness itself notices a script error, a request and low contrast."""
    bad = tmp_path / "bad.html"
    bad.write_text("<body style='background:#fff;color:#aaa'>pale<script src='http://127.0.0.1:9/x.js'></script>"
                   "<script>throw new Error('broken')</script>")  # fmt: skip
    page.problems.clear()
    page.open(bad, width=390, height=844)

    def are_reported() -> bool:
        time.sleep(0.05)  # a loaded machine loads the page late
        page.call("Page.getLayoutMetrics")  # reads the events that came before its answer
        return all(any(word in p for p in page.problems) for word in ("broken", "127.0.0.1"))

    assert any(are_reported() for _ in range(1200))
    assert [(text, round(ratio, 2)) for text, ratio in page.run(CONTRASTS)] == [("pale", 2.32)]
