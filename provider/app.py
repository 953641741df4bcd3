"""The composition root: from a checked configuration to a daemon or a gateway at work.

    run_start ─▶ lock ─▶ Daemon (signals, control socket) ─▶ prepare ─▶ Serving (engine, jobs, link, gateway)
    run_gateway ─▶ the gateway alone

Only here is the configuration turned into the plain values that every other room takes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from importlib.metadata import version as installed_version
from pathlib import Path
from platform import python_version
from typing import Any

from gateway_protocol.messages import Machine, Software
from provider.config import Settings
from provider.daemon import Daemon, note, on_signals, say
from provider.engine.process import EngineProcess
from provider.engine.spec import EngineSettings, ModelSpec
from provider.errors import ProviderError
from provider.jobs.plan import AnswerRules
from provider.link.dial import LinkSettings
from provider.link.presence import Identity
from provider.live_config import LiveConfig, follow
from provider.local_gateway.settings import Access, Caps, GatewaySettings, Timers
from provider.logs import RotatingFile, configure_logs, set_aside
from provider.models.catalogue import DEMO_MODEL
from provider.models.library import ModelLibrary
from provider.oversight import OversightPlan
from provider.policy.pause import PauseFile
from provider.policy.rules import Facts, Level, Policy
from provider.policy.schedule import parse_window
from provider.serving import ServingPlan, start_gateway
from provider.status.measure import MeasuredFile, MeasureError, measure
from provider.system.crash_loop import CRASHES, WITHIN_SECONDS, CrashLoopGuard
from provider.system.facts import Machine as SystemMachine
from provider.system.facts import this_machine
from provider.system.identity import StoredIdentity, load_identity, rotate_key
from provider.system.lock import acquire
from provider.system.paths import Paths
from provider.system.zone import local_zone


async def run_start(config: LiveConfig, paths: Paths, *, local: bool, service: bool) -> int:
    """The daemon. Returns the exit code; raises `ProviderError` for what the user must know."""
    paths.create()
    # A service has no terminal; a daemon in the foreground has nothing else.
    log_stream = RotatingFile(paths.log_file) if service else None
    if service:
        set_aside(paths.crash_log)
    # As it is until the configuration, which may be faulty, says how.
    configure_logs(stream=log_stream)
    rest_until: float | None = None

    def prepare() -> ServingPlan:
        settings = config.load()
        configure_logs(settings.log.level, settings.log.format, log_stream)
        if rest_until is not None and time.time() < rest_until:
            raise ProviderError(
                f"crashed {CRASHES} times in {WITHIN_SECONDS / 60:.0f} minutes; rests until"
                f" {time.strftime('%H:%M', time.localtime(rest_until))}, then tries again"
            )
        return serving_plan(settings, paths, local=local, tell=note if service else say)

    with acquire(paths.lock_file, wait=service):
        guard = CrashLoopGuard(paths.state / "starts.json") if service else None
        rest_until = guard.begin(time.time()) if guard else None
        daemon = Daemon(
            control_socket=paths.control_socket,
            config=config,
            prepare=prepare,
            rotate=lambda: _identity(rotate_key(paths.state)),
            pause_file=PauseFile(paths.state),
            version=product_version(),
            service=service,
        )
        code = await daemon.run()
        if guard is not None:
            guard.end()
        return code


async def run_gateway(config: LiveConfig, paths: Paths) -> int:
    """Only the gateway, until a signal. Which providers it lets in follows the configuration at once."""
    settings = config.load()
    paths.create()
    configure_logs(settings.log.level, settings.log.format)
    stopping = asyncio.Event()
    on_signals(stopping.set)
    gateway = await start_gateway(gateway_settings(settings, paths))
    say(f"ready: {gateway.url}/v1")
    say(f"to serve it: malibu-provider start --gateway {gateway.link_url}")
    following = asyncio.create_task(
        follow(config, lambda settings: gateway.admit(access(settings, paths))), name="configuration"
    )
    await stopping.wait()
    following.cancel()
    await gateway.aclose()
    return 0


async def run_measure(settings: Settings, paths: Paths) -> dict[str, Any]:
    """Measure with an engine of its own, while no daemon runs. Raises `ProviderError`."""
    paths.create()
    configure_logs("warning", settings.log.format)
    with acquire(paths.lock_file):
        models = await asyncio.to_thread(find_models, settings, paths, say)
        engine = EngineProcess(engine_settings(settings, models))
        try:
            await engine.start()
            await engine.wait_ready()
            found = await measure(
                engine, models[0].id, clock=time.monotonic, at_ms=lambda: int(time.time() * 1000)
            )
            MeasuredFile(paths.state).write(found, measured_setup(settings, models))
        except MeasureError as error:
            raise ProviderError(f"not measured: {error}") from None
        except OSError as error:
            raise ProviderError(f"can't keep the figures: {error.strerror}") from None
        finally:
            await engine.aclose()
    return found.model_dump()


def product_version() -> str:
    return installed_version("malibu-provider")


def serving_plan(
    settings: Settings, paths: Paths, *, local: bool, tell: Callable[[str], None]
) -> ServingPlan:
    """Everything that serving needs. Blocks: reads files, may fetch models, of which it tells its owner."""
    machine = this_machine(paths.state)
    hardware, models = machine.hardware(), find_models(settings, paths, tell)
    return ServingPlan(
        engine=engine_settings(settings, models),
        rules=answer_rules(settings),
        link=link_settings(settings, local=local),
        gateway=gateway_settings(settings, paths) if local else None,
        identity=_identity(load_identity(paths.state)),
        software=Software(
            name="malibu-provider",
            version=product_version(),
            mlx=installed_version("mlx"),
            mlx_lm=installed_version("mlx-lm"),
            python=python_version(),
        ),
        machine=Machine(
            chip=hardware.chip,
            memory_bytes=hardware.memory_bytes,
            gpu_cores=hardware.gpu_cores,
            os=hardware.os,
        ),
        drain_seconds=settings.drain.seconds,
        oversight=oversight_plan(settings, paths, machine, models, local=local),
    )


def link_settings(settings: Settings, *, local: bool) -> LinkSettings:
    """How the gateway is dialled. `local`: `Serving` puts in the embedded one's address."""
    return LinkSettings(
        url=settings.gateway.url,
        token_file=None if local else settings.gateway.token_file,
        allow_insecure=settings.gateway.allow_insecure,
        user_agent=f"malibu-provider/{product_version()}",
        refused_retry=settings.gateway.refused_retry_seconds,
    )


def oversight_plan(
    settings: Settings, paths: Paths, machine: SystemMachine, models: tuple[ModelSpec, ...], *, local: bool
) -> OversightPlan:
    """What goes on beside serving. `local`: for programs of this machine's owner."""

    async def read() -> Facts:
        condition = await asyncio.to_thread(machine.condition)
        return Facts(
            now=time.time(),
            on_battery=condition.on_battery,
            battery_percent=condition.battery_percent,
            low_power=condition.low_power,
            thermal=None if condition.thermal is None else Level(condition.thermal),
            memory_pressure=None if condition.memory_pressure is None else Level(condition.memory_pressure),
            user_idle_seconds=condition.user_idle_seconds,
            free_disk_bytes=condition.free_disk_bytes,
        )

    return OversightPlan(
        policy=policy(settings, local=local),
        state=paths.state,
        read=read,
        setup=measured_setup(settings, models),
        drain_seconds=settings.drain.seconds,
        keep_awake=settings.policy.keep_awake,
        report=settings.status.enabled,
        report_url=settings.status.url,
        # The scripted engine's speed is what its script says.
        measure_at_start=settings.engine.measure_at_start and settings.engine.kind == "mlx",
        metrics_port=settings.metrics.port,
    )


def measured_setup(settings: Settings, models: tuple[ModelSpec, ...]) -> str:
    """What figures depend on besides the model: others don't count for this set-up."""
    return " ".join((settings.engine.kind, installed_version("mlx"), models[0].revision or "")).strip()


def find_models(settings: Settings, paths: Paths, tell: Callable[[str], None]) -> tuple[ModelSpec, ...]:
    """What the engine is to serve; a model that isn't here is fetched, with its progress told. Blocks."""
    library = model_library(settings, paths)
    specs = []
    for name in settings.engine.models or (DEMO_MODEL,):
        model = library.identify(name)
        folder = None
        if settings.engine.kind == "mlx":
            folder = library.find(model) or library.pull(model, tell)
        specs.append(library.spec(model, folder))
    return tuple(specs)


def model_library(settings: Settings, paths: Paths) -> ModelLibrary:
    """The user's models, with what the configuration says of each."""
    sections = {name: dict(section) for name, section in settings.model.items()}
    return ModelLibrary.configured(paths.models, sections)


def answer_rules(settings: Settings) -> AnswerRules:
    return AnswerRules(
        contract=settings.contract,
        streaming=settings.tools.streaming,
        force=settings.tools.force,
        parallel_when_omitted=settings.tools.parallel_when_omitted,
        max_messages=settings.limits.messages,
    )


def engine_settings(settings: Settings, models: tuple[ModelSpec, ...]) -> EngineSettings:
    return EngineSettings(
        backend=settings.engine.kind,
        models=models,
        slots=settings.engine.slots,
        queue_seconds=settings.queue.seconds,
        script=settings.engine.script,
        memory_limit_bytes=_gigabytes(settings.engine.memory_gb),
        prompt_cache_bytes=_gigabytes(settings.engine.prompt_cache_gb),
        idle_unload_seconds=(
            None if settings.engine.idle_unload_minutes is None else settings.engine.idle_unload_minutes * 60
        ),
    )


def _gigabytes(number: float | None) -> int | None:
    return None if number is None else int(number * 1e9)


def gateway_settings(settings: Settings, paths: Paths) -> GatewaySettings:
    dispatch, local = settings.dispatch, settings.local_gateway
    return GatewaySettings(
        host=local.host,
        port=local.port,
        contract=settings.contract,
        max_messages=settings.limits.messages,
        force_tools=settings.tools.force,
        queue_seconds=dispatch.queue_seconds,
        queue_length=dispatch.queue_length,
        timers=Timers(
            first_content=dispatch.first_content_seconds,
            job_deadline=dispatch.deadline_seconds,
            resume_window=dispatch.resume_seconds,
        ),
        tls_cert=local.tls_cert,
        tls_key=local.tls_key,
        state_file=paths.gateway_state,
        minimum_version=local.minimum_version,
        recommended_version=local.recommended_version,
        access=access(settings, paths),
        caps=Caps(requests_per_minute=local.requests_per_minute, streams_per_key=local.streams_per_key),
    )


def access(settings: Settings, paths: Paths) -> Access:
    """Who may speak to the gateway. Reads the file of providers' tokens; raises `ProviderError`."""
    local = settings.local_gateway
    return Access(
        keys_file=local.keys_file or usual_keys_file(paths),
        provider_tokens=_lines(local.provider_tokens_file),
        provider_keys=None if local.provider_keys is None else frozenset(local.provider_keys),
        hosts=frozenset(local.hosts),
        origins=frozenset(local.origins),
    )


def usual_keys_file(paths: Paths) -> Path | None:
    """The file that `gateway key add` makes where the configuration names none, once it is there."""
    return paths.keys_file if paths.keys_file.is_file() else None


def policy(settings: Settings, *, local: bool) -> Policy:
    """When this machine may serve, in its own time zone. `local`: its owner knows that it is on battery."""
    rules = settings.policy
    return Policy(
        windows=tuple(parse_window(window) for window in rules.windows),
        zone=local_zone(),
        serve_on_battery=local if rules.on_battery is None else rules.on_battery,
        serve_in_low_power=local if rules.low_power is None else rules.low_power,
        thermal_limit=None if rules.thermal == "off" else Level(rules.thermal),
        memory_limit=None if rules.memory == "off" else Level(rules.memory),
        user_idle_seconds=rules.user_idle_seconds,
        free_disk_bytes=int(rules.free_disk_gb * 1e9),
    )


def _lines(file: Path | None) -> frozenset[str]:
    """The words of a file, one a line; none without a file."""
    if file is None:
        return frozenset()
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ProviderError(f"can't read {file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ProviderError(f"can't read {file}: it is not UTF-8") from None
    return frozenset(line.strip() for line in lines if line.strip())


def _identity(stored: StoredIdentity) -> Identity:
    return Identity(stored.provider_id, stored.key, stored.consents)
