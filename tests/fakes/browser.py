"""A headless Chromium, driven over its own debugging protocol: enough to load a page, type and look.

async with Browser(tmp_path) as browser:
    await browser.open(url)
    await browser.press("Tab")
    await browser.until("document.querySelector('#x').textContent === 'done'")
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import shutil
from pathlib import Path
from typing import Any, Self

from websockets.asyncio.client import ClientConnection, connect

PATIENCE = 60.0
_KEYS: dict[str, dict[str, Any]] = {
    "Tab": {"key": "Tab", "code": "Tab", "windowsVirtualKeyCode": 9},
    "Enter": {"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13, "text": "\r"},
    "Space": {"key": " ", "code": "Space", "windowsVirtualKeyCode": 32, "text": " "},
    "Escape": {"key": "Escape", "code": "Escape", "windowsVirtualKeyCode": 27},
}


def chromium() -> str | None:
    """Where the browser is, `None` if there is none."""
    return next((path for name in ("chromium", "chromium-browser") if (path := shutil.which(name))), None)


class Browser:
    """`console`: errors and warnings of the page. `requests`: every URL it asked for."""

    def __init__(self, profile: Path) -> None:
        self.console: list[str] = []
        self.requests: list[str] = []
        self._profile = profile
        self._process: asyncio.subprocess.Process | None = None
        self._socket: ClientConnection | None = None
        self._reader: asyncio.Task[None] | None = None
        self._ids = itertools.count(1)
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._session = ""

    async def __aenter__(self) -> Self:
        path = chromium()
        assert path is not None
        self._process = await asyncio.create_subprocess_exec(
            path,
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--disable-background-networking",
            "--remote-debugging-port=0",
            f"--user-data-dir={self._profile}",
            "about:blank",
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        async with asyncio.timeout(PATIENCE):
            url = await self._debugger_url()
        self._socket = await connect(url, max_size=None, proxy=None, ping_interval=None)
        self._reader = asyncio.create_task(self._read(self._socket))
        targets = await self._call("Target.getTargets")
        page = next(target for target in targets["targetInfos"] if target["type"] == "page")
        attached = await self._call("Target.attachToTarget", {"targetId": page["targetId"], "flatten": True})
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            await self._call(f"{domain}.enable")
        return self

    async def _debugger_url(self) -> str:
        assert self._process is not None
        assert self._process.stderr is not None
        while line := await self._process.stderr.readline():
            if line.startswith(b"DevTools listening on "):
                return line.split()[-1].decode()
        raise RuntimeError("Chromium did not start")

    async def __aexit__(self, *exc: object) -> None:
        assert self._process is not None
        if self._socket is not None:
            await self._socket.close()
        if self._reader is not None:
            await asyncio.gather(self._reader, return_exceptions=True)
        self._process.kill()
        await self._process.communicate()

    async def _read(self, socket: ClientConnection) -> None:
        async for frame in socket:
            message = json.loads(frame)
            if "id" in message:
                self._answers.pop(message["id"]).set_result(message)
                continue
            parameters = message.get("params", {})
            match message["method"]:
                case "Network.requestWillBeSent":
                    self.requests.append(parameters["request"]["url"])
                case "Log.entryAdded":
                    self.console.append(parameters["entry"]["text"])
                case "Runtime.exceptionThrown":
                    self.console.append(parameters["exceptionDetails"]["text"])
                case "Runtime.consoleAPICalled" if parameters["type"] in ("error", "warning"):
                    self.console.append(str(parameters["args"]))

    async def _call(self, method: str, parameters: dict[str, Any] | None = None) -> dict[str, Any]:
        assert self._socket is not None
        number = next(self._ids)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters or {}}
        if self._session:
            message["sessionId"] = self._session
        await self._socket.send(json.dumps(message))
        async with asyncio.timeout(PATIENCE):
            result = await answer
        if "error" in result:
            raise RuntimeError(f"{method}: {result['error']['message']}")
        found: dict[str, Any] = result["result"]
        return found

    # --- what a test does ----------------------------------------------------------------------

    async def look_as(self, *, width: int, dark: bool) -> None:
        await self._call(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False},
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self._call("Emulation.setEmulatedMedia", {"features": [scheme]})

    async def open(self, url: str) -> None:
        await self._call("Page.navigate", {"url": url})
        await self.until("document.readyState === 'complete' && location.href !== 'about:blank'")

    async def value(self, script: str) -> Any:
        """The JSON value of an expression in the page."""
        answer = await self._call("Runtime.evaluate", {"expression": script, "returnByValue": True})
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{script}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    async def until(self, script: str) -> None:
        """Wait until an expression in the page is true."""
        async with asyncio.timeout(PATIENCE):
            while not await self.value(f"Boolean({script})"):  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    async def press(self, key: str, *, control: bool = False) -> None:
        stroke = {**_KEYS[key], "modifiers": 2 if control else 0}
        await self._call("Input.dispatchKeyEvent", {"type": "keyDown", **stroke})
        await self._call("Input.dispatchKeyEvent", {"type": "keyUp", **stroke})

    async def type(self, text: str) -> None:
        await self._call("Input.insertText", {"text": text})

    async def tab_to(self, element_id: str) -> None:
        """Move the focus by keyboard alone until it is on this element."""
        for _ in range(100):
            if await self.value("document.activeElement.id") == element_id:
                return
            await self.press("Tab")
        raise AssertionError(f"#{element_id} can't be reached by keyboard")

    async def picture(self, path: Path) -> None:
        shot = await self._call("Page.captureScreenshot", {"captureBeyondViewport": True})
        await asyncio.to_thread(path.write_bytes, base64.b64decode(shot["data"]))
