"""Headless Chromium for tests, driven over its DevTools protocol with the websocket client of Bokeh's own tornado."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest
from tornado.httpclient import AsyncHTTPClient
from tornado.websocket import WebSocketClientConnection, websocket_connect

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="not run: there is no Chromium")

_FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu-sandbox", "--use-angle=swiftshader", "--enable-unsafe-swiftshader",
    "--disable-dev-shm-usage", "--no-first-run", "--disable-extensions", "--hide-scrollbars", "--mute-audio",
    "--remote-debugging-port=0", "--remote-allow-origins=*",
)  # fmt: skip


class Page:
    """One page in a browser of its own: open it, evaluate scripts, click, take pictures.  A context manager."""

    def __init__(self, file: Path, profile: Path, width: int = 1440, height: int = 1000) -> None:
        assert CHROMIUM is not None
        self.problems: list[str] = []
        """Errors and warnings of the page's scripts, and everything it tried to load."""
        self._numbers = iter(range(1, 1 << 30))
        self._loop = asyncio.new_event_loop()
        self._socket: WebSocketClientConnection | None = None
        self._browser = subprocess.Popen(
            [CHROMIUM, *_FLAGS, f"--user-data-dir={profile}", f"--window-size={width},{height}", "about:blank"],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            self._socket = self._loop.run_until_complete(asyncio.wait_for(self._connect(), 60))
            for domain in ("Page", "Runtime", "Network", "Log"):
                self.call(f"{domain}.enable")
            size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
            self.call("Emulation.setDeviceMetricsOverride", **size)
            self.call("Page.navigate", url=file.resolve().as_uri())
        except BaseException:
            self.close()
            raise

    async def _connect(self) -> WebSocketClientConnection:
        stderr = self._browser.stderr
        assert stderr is not None
        while True:
            line = await self._loop.run_in_executor(None, stderr.readline)
            assert line, "Chromium ended"
            found = re.search(r"ws://([^/]+)/", line)
            if found:
                break
        answer = await AsyncHTTPClient().fetch(f"http://{found[1]}/json")
        tabs = [tab for tab in json.loads(answer.body) if tab["type"] == "page"]
        return await websocket_connect(tabs[0]["webSocketDebuggerUrl"], max_message_size=1 << 28)

    async def _disconnect(self, socket: WebSocketClientConnection) -> None:
        socket.close()
        while await socket.read_message() is not None:
            pass

    def call(self, method: str, **parameters: Any) -> Any:
        """One command of the protocol and its result."""
        return self._loop.run_until_complete(asyncio.wait_for(self._call(method, parameters), 120))

    async def _call(self, method: str, parameters: dict[str, Any]) -> Any:
        number = next(self._numbers)
        assert self._socket is not None
        await self._socket.write_message(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            message = json.loads(await self._socket.read_message() or "{}")
            if message.get("id") == number:
                assert "error" not in message, message
                return message["result"]
            self._note(message)

    def _note(self, message: dict[str, Any]) -> None:
        method, about = message.get("method"), message.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(about["exceptionDetails"])[:2000])
        elif method == "Runtime.consoleAPICalled" and about["type"] in ("error", "warning", "assert"):
            self.problems.append(json.dumps(about["args"])[:2000])
        elif method == "Log.entryAdded" and about["entry"]["level"] in ("error", "warning"):
            self.problems.append(about["entry"]["text"])
        elif method == "Network.requestWillBeSent" and not about["request"]["url"].startswith(("file:", "data:")):
            self.problems.append(f"loads {about['request']['url'][:200]}")

    def run(self, script: str) -> Any:
        """The value of a script's expression; a promise is awaited."""
        got = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in got, got["exceptionDetails"]
        return got["result"].get("value")

    def wait_for(self, condition: str, seconds: float = 60) -> None:
        """Until an expression is true."""
        end = time.monotonic() + seconds
        while not self.run(f"(() => {{ try {{ return Boolean({condition}) }} catch (error) {{ return false }} }})()"):
            assert time.monotonic() < end, f"never true: {condition}"
            time.sleep(0.05)

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        """A mouse event such as ``mouseMoved``."""
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def click(self, x: float, y: float) -> None:
        """Press and release the left button."""
        self.mouse("mouseMoved", x, y)
        for kind in ("mousePressed", "mouseReleased"):
            self.mouse(kind, x, y, button="left", clickCount=1)

    def picture(self, file: Path | None = None, clip: dict[str, float] | None = None) -> bytes:
        """A PNG of what is seen, or of a rectangle of the page."""
        more: dict[str, Any] = {"clip": {**clip, "scale": 1}, "captureBeyondViewport": True} if clip else {}
        image = base64.b64decode(self.call("Page.captureScreenshot", format="png", **more)["data"])
        if file is not None:
            file.write_bytes(image)
        return image

    def close(self) -> None:
        """End the browser."""
        if self._socket is not None:
            self._loop.run_until_complete(self._disconnect(self._socket))
        self._browser.terminate()
        try:
            self._browser.wait(20)
        except subprocess.TimeoutExpired:
            self._browser.kill()
            self._browser.wait()
        if self._browser.stderr is not None:
            self._browser.stderr.close()
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, frames: TracebackType | None
    ) -> None:
        self.close()
