"""A headless Chromium, driven over its DevTools pipe, which needs no package."""

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
TIMEOUT_SECONDS = 120.0
FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run", "--mute-audio",
         "--disable-background-networking", "--disable-dev-shm-usage", "--remote-debugging-pipe")  # fmt: skip


def find_chromium() -> str | None:
    """Return the path of a Chromium: $CHROMIUM, or one on the path."""
    found = (shutil.which(name) for name in (os.environ.get("CHROMIUM", ""), *NAMES) if name)
    return next((path for path in found if path), None)


class Page:
    """One tab. `problems` collects uncaught exceptions, errors on the console, and requests other than to files."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self.problems: list[str] = []
        self._to, self._from, self._buffer, self._number, self._loaded = to_browser, from_browser, b"", 0, False
        target = self._call("Target.createTarget", session=None, url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", session=None, targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def open(self, page: Path, *, width: int, height: int, dark: bool = False) -> None:
        """Load a file in a window of this size, in light or dark mode, and wait until its scripts have run."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        self._loaded = False
        self.call("Page.navigate", url=page.resolve().as_uri())
        while not self._loaded:
            self._receive()
        self.settle()

    def settle(self) -> None:
        """Wait until promises and two animation frames are done."""
        frame = "new Promise((done) => requestAnimationFrame(done))"
        self.run(f"{frame}.then(() => new Promise((done) => setTimeout(done, 200))).then(() => {frame})")

    def run(self, expression: str) -> Any:
        """Evaluate JavaScript and return its value."""
        found = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in found:
            raise AssertionError(found["exceptionDetails"])
        return found["result"].get("value")

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        """Write a PNG of the window, or of the whole page."""
        found = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        if whole:
            size = self.call("Page.getLayoutMetrics")["cssContentSize"]
            clip = {**size, "scale": 1}
            found = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(found["data"]))

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a DevTools command to the tab and return its result."""
        return self._call(method, session=self._session, **parameters)

    def _call(self, method: str, *, session: str | None, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer)
                return answer["result"]

    def _receive(self) -> dict[str, Any]:
        end = time.monotonic() + TIMEOUT_SECONDS
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._from], [], [], max(0.0, end - time.monotonic()))
            assert ready, f"Chromium was silent for {TIMEOUT_SECONDS} s"
            more = os.read(self._from, 1 << 20)
            assert more, "Chromium has exited"
            self._buffer += more
        line, _, self._buffer = self._buffer.partition(b"\0")
        message = json.loads(line)
        event, given = message.get("method"), message.get("params", {})
        if event == "Page.loadEventFired":
            self._loaded = True
        if event == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(given["exceptionDetails"])[:500])
        if event == "Log.entryAdded" and given["entry"]["level"] == "error":
            self.problems.append(given["entry"]["text"])
        if event == "Network.requestWillBeSent" and not given["request"]["url"].startswith(("file:", "data:", "blob:")):
            self.problems.append(f"requested {given['request']['url'][:200]}")
        return message


@contextmanager
def chromium(path: str, profile: Path) -> Iterator[Page]:
    """Start a Chromium with an empty profile, yield a tab, and end it."""
    commands, to_browser = os.pipe()
    from_browser, answers = os.pipe()

    def connect() -> None:
        os.dup2(commands, 3)  # the descriptors that --remote-debugging-pipe uses
        os.dup2(answers, 4)

    command = [path, *FLAGS, f"--user-data-dir={profile}"]
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(command, preexec_fn=connect, pass_fds=(3, 4), **quiet)
    os.close(commands)
    os.close(answers)
    try:
        yield Page(to_browser, from_browser)
    finally:
        process.kill()
        process.wait()
        os.close(to_browser)
        os.close(from_browser)
