"""A real browser for tests: headless Chromium, spoken to over a pipe in the DevTools protocol."""

import base64
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Literal

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

_FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--remote-debugging-pipe",
)


class Browser:
    """One tab. What the page logs, throws and asks the network for is noted while it loads."""

    def __init__(self, commands: IO[bytes], answers: IO[bytes]) -> None:
        self._commands, self._answers = commands, answers
        self._session: str | None = None
        self._number = 0
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command and wait for its answer."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        self._commands.write(json.dumps(message).encode() + b"\0")
        self._commands.flush()
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return dict(answer["result"])

    def _receive(self) -> dict[str, Any]:
        raw = bytearray()
        while (byte := self._answers.read(1)) != b"\0":
            assert byte, "the browser is gone"
            raw += byte
        message: dict[str, Any] = json.loads(raw)
        if "method" in message:
            self.events.append(message)
        return message

    def show(self, page: Path, *, width: int, scheme: Literal["light", "dark"], motion: bool = True) -> None:
        """Load a file at this width of the window, for a reader who likes it light or dark, and moving or not."""
        self.events.clear()
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600
        )
        wanted = {"prefers-color-scheme": scheme, "prefers-reduced-motion": "no-preference" if motion else "reduce"}
        features = [{"name": name, "value": value} for name, value in wanted.items()]
        self.call("Emulation.setEmulatedMedia", media="", features=features)
        self.call("Page.navigate", url=page.as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self._receive()

    def evaluate(self, script: str) -> Any:
        """The value of a JavaScript expression in the page."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def box_of(self, selector: str) -> dict[str, float]:
        """Scroll to an element, and say where in the window it lies: x, y, width, height."""
        self.evaluate(f"document.querySelector({selector!r}).scrollIntoView()")
        box = self.evaluate(f"document.querySelector({selector!r}).getBoundingClientRect().toJSON()")
        return {name: box[name] for name in ("x", "y", "width", "height")}

    def screenshot(self) -> bytes:
        """The whole page as PNG."""
        answer = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        return base64.b64decode(answer["data"])

    @property
    def complaints(self) -> list[dict[str, Any]]:
        """Exceptions, and what was logged to the console."""
        kinds = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")
        return [event for event in self.events if event["method"] in kinds]

    @property
    def requested(self) -> list[str]:
        """The addresses that the page asked for, images inside it left out."""
        asked = [event["params"] for event in self.events if event["method"] == "Network.requestWillBeSent"]
        return [params["request"]["url"] for params in asked if not params["request"]["url"].startswith("data:")]


@contextmanager
def open_browser(profile: Path) -> Iterator[Browser]:
    """Start a browser whose profile lies in the given directory, and end it."""
    assert CHROMIUM is not None
    to_browser, from_browser = os.pipe(), os.pipe()
    # Chromium reads commands from descriptor 3 and answers on 4; not every shell takes numbers above 9 in their place.
    redirected = f'exec "$@" 3<&{to_browser[0]} 4>&{from_browser[1]}'
    command = ["bash", "-c", redirected, "bash", CHROMIUM, *_FLAGS, f"--user-data-dir={profile}", "about:blank"]
    process = subprocess.Popen(
        command, pass_fds=(to_browser[0], from_browser[1]), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    os.close(to_browser[0])
    os.close(from_browser[1])
    try:
        with os.fdopen(to_browser[1], "wb") as commands, os.fdopen(from_browser[0], "rb") as answers:
            yield Browser(commands, answers)
    finally:
        process.terminate()
        process.wait(timeout=60)
