"""One daemon process: signals, control socket, and serving again after a fault that its owner has mended.

starting ─▶ serving ─▶ draining ─▶ exit 0
    └── fault ─▶ raised (exit ≠ 0), or as a service: idle ─▶ its files change, time passes ─▶ starting
"""

from __future__ import annotations

import asyncio
import math
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import structlog

from provider.blocking_work import in_daemon_thread
from provider.errors import ConfigError, ProviderError, UsageError
from provider.link.presence import Identity
from provider.live_config import LOOK_SECONDS, LiveConfig, Stamps
from provider.logs import LastingStream
from provider.policy.pause import OwnerPause, PauseFile
from provider.serving import Serving, ServingPlan
from provider.status.control import ControlServer
from provider.status.document import ProcessFacts, whole
from provider.status.history import day_of
from provider.status.measure import MeasureError
from provider.status.metrics import CONTENT_TYPE, Metrics
from provider.status.metrics_server import MetricsEndpoint
from provider.system.watchdog import LoopWatchdog

log = structlog.get_logger()

Result = TypeVar("Result")

# A port, a disk, a download may be well by itself: an idle service tries again so often.
_RETRY_SECONDS = 60.0
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Refused(ProviderError):
    """The gateway's refusal, which no restart cures. `retry_seconds`: then it may think otherwise."""

    def __init__(self, text: str, retry_seconds: float) -> None:
        super().__init__(text)
        self.retry_seconds = retry_seconds


class Daemon:
    """Its control socket answers from beginning to end, whatever state serving is in.

    `prepare` reads configuration, identity and models, each time it is called; it may block for long and
    raises `ProviderError`. `rotate` makes a new key. A change of a file of `config` may cure a fault.
    """

    def __init__(
        self,
        *,
        control_socket: Path,
        config: LiveConfig,
        prepare: Callable[[], ServingPlan],
        rotate: Callable[[], Identity],
        pause_file: PauseFile,
        version: str,
        service: bool,
    ) -> None:
        self._control_socket = control_socket
        self._config = config
        self._prepare = prepare
        self._rotate = rotate
        self._pause_file = pause_file
        self._version = version
        self._service = service
        self._tell = note if service else say
        self._state = "starting"
        self._reason: str | None = None
        self._began = time.monotonic()
        self._stopping = asyncio.Event()
        self._hurry = asyncio.Event()
        self._serving: Serving | None = None
        metrics = Metrics(
            self.document,
            lambda: None if self._serving is None else self._serving.oversight.books.tally,
            lambda: None if self._serving is None else self._serving.jobs.token_gaps,
        )
        self._metrics = MetricsEndpoint(metrics.text, CONTENT_TYPE)

    async def run(self) -> int:
        """The exit code. Raises `ProviderError` for what the user must know."""
        on_signals(self._stop)
        watchdog = LoopWatchdog()
        watchdog.start()
        control = ControlServer(
            self._control_socket,
            status=self.document,
            commands={
                "stop": self._command_stop,
                "pause": self._command_pause,
                "resume": self._command_resume,
                "measure": self._command_measure,
                "reconnect": self._command_reconnect,
                "rotate-key": self._command_rotate_key,
            },
        )
        await control.start()
        try:
            while not self._stopping.is_set():
                await self._serve_or_idle()
        finally:
            await control.aclose()
            await self._metrics.aclose()
            watchdog.stop()
        return 0

    async def _serve_or_idle(self) -> None:
        """Serve once. A fault is raised, or under the service waited out."""
        stamps = self._config.stamps()
        try:
            await self._serve()
        except ProviderError as error:
            if not self._service:
                raise
            self._state, self._reason = "idle", "; ".join(error.lines)
            log.error("idle", reason=self._reason)
            await self._until_changed(stamps, _retry_after(error))

    async def _serve(self) -> None:
        self._state, self._reason = "starting", None
        plan = await self._unless_stopped(self._prepare)
        if plan is None:
            return
        await self._metrics.use(plan.oversight.metrics_port)
        serving = self._serving = Serving(
            plan, stopping=self._stopping, hurry=self._hurry, document=self.document
        )
        announcement = asyncio.create_task(self._announce(serving), name="announcement")
        try:
            end = await serving.run()
        finally:
            announcement.cancel()
            self._serving = None
        if end is not None:
            again = math.inf if end.replaced else plan.link.refused_retry
            raise Refused(f"{serving.board.gateway} doesn't take this provider: {end}", again)

    async def _announce(self, serving: Serving) -> None:
        """Say once that requests are answered now, and how to make one; or, before, why they aren't."""
        await serving.known()
        if self._state == "starting":
            self._state = "serving"
        if not serving.board.routable:
            self._tell(self.document()["health"]["summary"])
        await serving.routable()
        models = list(serving.engine.models())
        origin, key = _buyers_view(serving)
        self._tell(f"ready: {origin}/v1 (model {', '.join(models)})")
        self._tell(
            f"try: curl {origin}/v1/chat/completions{key} -H 'Content-Type: application/json'"
            f' -d \'{{"model": "{models[0]}", "messages": [{{"role": "user", "content": "Hello"}}]}}\''
        )

    # --- stop, idle ----------------------------------------------------------------------------

    def _stop(self) -> None:
        """First: finish what is under way. Again: end now."""
        if self._stopping.is_set():
            self._hurry.set()
            return
        self._state = "draining"
        self._stopping.set()

    async def _until_changed(self, stamps: Stamps, seconds: float) -> None:
        """Return when a file isn't as it was when the attempt began, after `seconds`, or at the stop."""
        until = time.monotonic() + seconds
        while self._config.stamps() == stamps:
            left = until - time.monotonic()
            if left <= 0:
                return
            try:
                async with asyncio.timeout(min(LOOK_SECONDS, left)):
                    await self._stopping.wait()
                    return
            except TimeoutError:
                pass

    async def _unless_stopped(self, work: Callable[[], Result]) -> Result | None:
        """`work` in a thread that the process's end doesn't wait for; `None` when the stop came first."""
        future = in_daemon_thread(work)
        stop = asyncio.ensure_future(self._stopping.wait())
        try:
            waits: list[asyncio.Future[Any]] = [future, stop]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            return await future if future.done() else None
        finally:
            future.cancel()
            stop.cancel()

    # --- commands ------------------------------------------------------------------------------

    def document(self) -> dict[str, Any]:
        """The status document."""
        serving = self._serving
        identity = None if serving is None else serving.identity
        facts = ProcessFacts(
            state=self._state,
            reason=self._reason,
            version=self._version,
            uptime_s=time.monotonic() - self._began,
            contract=None if serving is None else serving.contract,
            provider_id=None if identity is None else identity.provider_id,
            key_id=None if identity is None else identity.key.key_id,
            config_file=str(self._config.file),
            config_remark=self._config.remark() if self._state == "serving" else None,
            local_url=None if serving is None or serving.gateway is None else serving.gateway.url,
            tasks=len(asyncio.all_tasks()),
        )
        part = None if serving is None else serving.document()
        return whole(facts, part, self._metrics.document(), day_of(int(time.time() * 1000), None))

    async def _command_stop(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        asyncio.get_running_loop().call_soon(self._stop)
        return {"stopping": True}

    async def _command_pause(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """`until`: epoch seconds, or until `resume`."""
        until = None if body.get("until") is None else float(body["until"])
        if self._serving is not None:
            self._serving.oversight.policy.pause(until)
        else:
            self._pause_file.write(OwnerPause(time.time(), until))
        return self._paused()

    async def _command_resume(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        if self._serving is not None:
            self._serving.oversight.policy.resume()
        else:
            self._pause_file.remove()
        return self._paused()

    def _paused(self) -> Mapping[str, Any]:
        """What holds now: other reasons may stay when the owner's is gone."""
        document = self.document()
        return {"summary": document["health"]["summary"], "policy": document["policy"]}

    async def _command_measure(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        if self._serving is None:
            return {"error": "nothing is served now"}
        try:
            return (await self._serving.oversight.measuring.now()).model_dump()
        except MeasureError as error:
            return {"error": str(error)}

    async def _command_reconnect(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        if self._serving is not None:
            self._serving.reconnect()
        return {"dialling": self._serving is not None}

    async def _command_rotate_key(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        identity = await asyncio.to_thread(self._rotate)
        if self._serving is not None:
            await self._serving.adopt(identity)
        return {"provider_id": identity.provider_id, "key_id": identity.key.key_id}


def on_signals(handler: Callable[[], None]) -> None:
    """Call `handler` at each signal that asks the process to end."""
    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        loop.add_signal_handler(number, handler)


def say(line: str) -> None:
    """A line for the person at the terminal, if there still is one."""
    print(line, file=LastingStream(sys.stderr), flush=True)


def note(line: str) -> None:
    """The same where there is no terminal: what a service prints is kept for its crashes."""
    log.info("told", line=line)


def _retry_after(error: ProviderError) -> float:
    """Seconds after which a fault may have healed though no file has changed."""
    if isinstance(error, Refused):
        return error.retry_seconds
    return math.inf if isinstance(error, ConfigError | UsageError) else _RETRY_SECONDS


def _buyers_view(serving: Serving) -> tuple[str, str]:
    """The origin that buyers call, and what a request to it needs besides."""
    if serving.gateway is not None:
        return serving.gateway.url, ""
    parts = urlsplit(serving.board.gateway)
    scheme = "https" if parts.scheme == "wss" else "http"
    return f"{scheme}://{parts.netloc}", ' -H "Authorization: Bearer $API_KEY"'
