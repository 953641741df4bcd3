"""The engine as the daemon sees it: a child process, watched, restarted, spoken to over a socketpair.

One task (`engine-supervisor`) starts the child, watches it and starts it again. Whatever ends a child, each
open job gets exactly one last event.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping

import structlog

from gateway_protocol.errors import ErrorCode
from gateway_protocol.messages import ModelState
from provider.engine.base import Admitted, EngineStatus, Failed, GenerationRequest, ModelInfo, Rejected
from provider.engine.child_link import ChildLink, LastWords, describe_exit
from provider.engine.errors import EngineStartError
from provider.engine.generation import OpenGeneration
from provider.engine.ipc import (
    Beat,
    Cancel,
    FromChild,
    FromDaemon,
    Hello,
    ModelReport,
    Pause,
    Serving,
    Setup,
    Submit,
    TokenRow,
)
from provider.engine.launch import spawn_child
from provider.engine.model_folder import check_folder
from provider.engine.restart import RestartPolicy
from provider.engine.script import load_script
from provider.engine.spec import EngineSettings
from provider.engine.view import EngineView
from provider.engine.watchdog import Watchdog

log = structlog.get_logger(__name__)

_RETRY_MS = 2_000
_FAILURES: Mapping[str, tuple[ErrorCode, str]] = {
    "child_exited": (ErrorCode.PROVIDER_ERROR, "the engine's process ended; it is being restarted"),
    "start_timeout": (ErrorCode.PROVIDER_TIMEOUT, "the engine did not start in time"),
    "load_timeout": (ErrorCode.PROVIDER_TIMEOUT, "loading the model took too long"),
    "step_timeout": (ErrorCode.PROVIDER_TIMEOUT, "the engine stopped making progress"),
    "first_token_timeout": (ErrorCode.PROVIDER_TIMEOUT, "the engine gave no first token in time"),
    "engine_closed": (ErrorCode.PROVIDER_ERROR, "the engine was shut down"),
}


class EngineProcess:
    """Implements `base.Engine`. Everything runs on the event loop that `start` is awaited on."""

    def __init__(self, settings: EngineSettings) -> None:
        self._settings = settings
        self._view = EngineView(settings)
        self._watchdog = Watchdog(settings.deadlines)
        self._restarts = RestartPolicy()
        self._link: ChildLink | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self._started: asyncio.Future[None] | None = None
        self._open: dict[int, OpenGeneration] = {}
        self._serial = 0

    async def check(self) -> None:
        """What can be told before anything is started.

        Raises `ScriptError` for a bad script, `EngineStartError` for a missing or damaged model folder.
        """
        settings = self._settings
        if settings.backend == "scripted":
            if settings.script is None:
                raise EngineStartError("the scripted engine needs a script file")
            await asyncio.to_thread(load_script, settings.script)
        else:
            for spec in settings.models:
                await asyncio.to_thread(check_folder, spec.id, spec.path)

    async def start(self, *, parked: bool = False) -> None:
        """Check, start the child, return once it is up; `parked`: without the child.

        Raises what `check` does, and `EngineStartError` where the child can't come up. Whether the model then
        loads, `wait_ready` tells.
        """
        await self.check()
        if parked:
            self._view.on_park()
            return
        self._started = asyncio.get_running_loop().create_future()
        self._supervisor = asyncio.create_task(self._supervise(), name="engine-supervisor")
        try:
            await asyncio.shield(self._started)
        except BaseException:
            await self.aclose()
            raise

    async def wait_ready(self) -> None:
        """Return when the engine serves. Raises `EngineStartError` when no model could be loaded."""
        while not self._view.ready:
            if self._view.hopeless:
                raise EngineStartError(self._view.detail() or "no model could be loaded")
            await self.wait_change()

    def submit(self, request: GenerationRequest) -> OpenGeneration:
        self._serial += 1
        generation = OpenGeneration(self._serial, request, self)
        if self._settings.model(request.model) is None:
            generation.feed_event(
                Rejected(ErrorCode.MODEL_NOT_FOUND, f"model {request.model} is not served here", "model")
            )
        elif self._link is None:
            generation.feed_event(
                Rejected(ErrorCode.PROVIDER_OVERLOADED, "the engine is restarting", retry_after_ms=_RETRY_MS)
            )
        else:
            self._open[generation.serial] = generation
            self._view.submitted += 1
            self._link.send(Submit(generation.serial, request))
        return generation

    def models(self) -> Mapping[str, ModelInfo]:
        return self._view.infos

    def status(self) -> EngineStatus:
        running = sum(generation.admitted for generation in self._open.values())
        return self._view.status(running=running, waiting=len(self._open) - running)

    async def wait_change(self) -> None:
        await self._view.changed.wait()

    async def park(self) -> None:
        """End the child, and with it every byte it holds, until `unpark`. Open jobs fail: park when idle."""
        if not self._view.parked:
            self._view.on_parking()
            await self.aclose()
            self._view.on_park()

    def unpark(self) -> None:
        """Begin to serve again; a child that can't start is tried again like one that died."""
        if self._view.parked:
            self._view.on_unpark()
            self._supervisor = asyncio.create_task(self._supervise(), name="engine-supervisor")

    async def aclose(self) -> None:
        if self._supervisor is not None:
            self._supervisor.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._supervisor
            self._supervisor = None
        self._end_all("engine_closed")

    # --- generations reach the child through these -----------------------------------------------

    def send_cancel(self, serial: int) -> None:
        if self._link is not None:
            self._link.send(Cancel(serial))

    def send_pause(self, serial: int, paused: bool) -> None:
        if self._link is not None and serial in self._open:
            self._link.send(Pause(serial, paused))
            if paused:
                self._watchdog.first_token_done(serial)

    # --- what the child says -----------------------------------------------------------------------

    def _receive(self, message: FromDaemon | FromChild) -> None:
        match message:
            case Beat():
                self._on_beat(message)
            case Hello(device, slots):
                self._watchdog.hello()
                self._view.on_hello(device, slots)
                if self._started is not None and not self._started.done():
                    self._started.set_result(None)
            case ModelReport(model, state, detail):
                self._watch_loading(model, state)
                self._view.on_model(model, state, detail)
            case Serving(slots):
                self._restarts.born(asyncio.get_running_loop().time())
                self._view.on_serving(slots)

    def _watch_loading(self, model: str, state: ModelState) -> None:
        if state is ModelState.LOADING:
            self._watchdog.loading(model, self._view.weight_bytes(model))
        else:
            self._watchdog.loaded(model)

    def _on_beat(self, beat: Beat) -> None:
        self._watchdog.beat()
        self._view.on_beat(beat)
        for row in beat.rows:
            generation = self._open.get(row.serial)
            if generation is None:
                continue
            if isinstance(row, TokenRow):
                if not generation.first_token_seen:
                    self._watchdog.first_token_done(row.serial)
                generation.feed_row(row)
                continue
            generation.feed_event(row.event)
            if isinstance(row.event, Admitted):
                uncached = row.event.prompt_tokens - row.event.cached_tokens
                self._watchdog.admitted(row.serial, uncached)
            if generation.ended:
                self._close_generation(row.serial)

    def _close_generation(self, serial: int) -> None:
        self._open.pop(serial, None)
        self._watchdog.first_token_done(serial)

    def _end_all(self, cause: str) -> None:
        code, message = _FAILURES[cause]
        open_now, self._open = self._open, {}
        for generation in open_now.values():
            generation.feed_event(Failed(cause, message, code, _RETRY_MS))

    # --- the child's life -----------------------------------------------------------------------

    async def _supervise(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                cause, how = await self._run_child()
            except Exception as error:
                # Whatever it is (no process or descriptor to be had): the daemon must go on, and try again.
                log.exception("engine_supervisor_failed")
                cause, how = "child_exited", f"the engine's process can't be run: {error}"
            self._end_all(cause)
            if self._started is not None and not self._started.done():
                self._view.on_no_start(how)
                self._started.set_exception(EngineStartError(f"{how}; the engine can't start"))
                return
            delay = self._restarts.died(loop.time())
            self._view.on_death(how, delay, crash_loop=self._restarts.crash_loop(loop.time()))
            log.error("engine_child_died", cause=cause, detail=how, restart_in_seconds=round(delay, 1))
            await asyncio.sleep(delay)

    async def _run_child(self) -> tuple[str, str]:
        """One child from birth to death; returns the cause for its jobs and how it ended for the owner."""
        process, sock = await spawn_child()
        assert process.stderr is not None
        words = LastWords(process.stderr)
        link = ChildLink(self._receive)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(words.follow(), name="engine-stderr")
                await asyncio.get_running_loop().create_unix_connection(lambda: link, sock=sock)
                self._link = link
                self._watchdog.spawned()
                self._view.on_spawn(process.pid)
                link.send(Setup(self._settings, self._view.to_preload()))
                cause = await self._watch(process, link)
        finally:
            self._link = None
            link.close()
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        how = describe_exit(process.returncode, words.last)
        return cause, how if cause == "child_exited" else f"{_FAILURES[cause][1]}"

    async def _watch(self, process: asyncio.subprocess.Process, link: ChildLink) -> str:
        """Wait until the child is gone, by itself or killed here; returns the cause."""
        loop = asyncio.get_running_loop()
        cause = "child_exited"
        while not link.lost.is_set():
            try:
                async with asyncio.timeout(self._watchdog.tick_seconds):
                    await link.lost.wait()
            except TimeoutError:
                pass
            self._watchdog.tick(loop.time())
            overdue = self._watchdog.overdue()
            if overdue is not None:
                cause = overdue
                break
        # A socket that ended without its process is no less dead: nothing can be asked of it any more.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2.0 if cause == "child_exited" else 0):
                await process.wait()
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        return cause
