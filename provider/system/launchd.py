"""The service on macOS: a LaunchAgent, driven by `launchctl`.

The texts and codes that `launchctl` answers with are in the stand-in under `tests/fakes`, with their sources.
"""

from __future__ import annotations

import os
import plistlib
import re
import time
from collections.abc import Callable
from pathlib import Path
from xml.parsers.expat import ExpatError

from provider.system.service import (
    RESTART_INTERVAL,
    Answer,
    ServiceError,
    ServiceSpec,
    ServiceStatus,
    ask_manager,
    write_definition,
)

LABEL = "tech.malibu.provider"
HOMEBREW_LABEL = "homebrew.mxcl.malibu-provider"
# `bootout` answers before the job is gone; a bootstrap in between fails with "5: Input/output error". It is
# gone when its jobs are done, at most ExitTimeOut seconds and what launchd itself takes.
_GONE_SECONDS = 15.0
_LOOK_AGAIN_SECONDS = 0.1
# And it goes on failing for some five seconds after the job is gone (headroomlabs-ai/headroom#1289).
_BOOTSTRAP_TRIES = 8
_BOOTSTRAP_AGAIN_SECONDS = 2.0
# `user/UID` takes agents of this session type, `gui/UID` those that name none: geldata/gel-cli#740, and
# "134: Service cannot load in requested session" in Homebrew/homebrew-services#517.
_SESSION_TYPE, _BACKGROUND = "LimitLoadToSessionType", "Background"
# "Operation already in progress": the job that was just loaded is starting by itself.
_STARTING = 37


class Launchd:
    """`agents`: the user's LaunchAgents folder. `sleep`, `clock`: seconds, for waiting."""

    def __init__(
        self,
        *,
        agents: Path | None = None,
        label: str = LABEL,
        uid: int | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._agents = agents or Path.home() / "Library" / "LaunchAgents"
        self._label = label
        self._uid = os.getuid() if uid is None else uid
        self._clock = clock
        self._sleep = sleep

    @property
    def file(self) -> Path:
        return self._agents / f"{self._label}.plist"

    def definition(self, spec: ServiceSpec) -> str:
        document = {
            "Label": self._label,
            "ProgramArguments": list(spec.program),
            "RunAtLoad": True,
            # Come back after a crash, stay away after a clean end: `malibu-provider stop` ends with 0.
            "KeepAlive": {"SuccessfulExit": False},
            "ThrottleInterval": RESTART_INTERVAL,
            "ExitTimeOut": spec.exit_timeout,
            # Generation is work for someone who waits; launchd would slow a background job down.
            "ProcessType": "Interactive",
            "Umask": 0o077,
            # The daemon keeps its own rotating log; these hold only what it prints before and while it dies.
            "StandardOutPath": str(spec.crash_log),
            "StandardErrorPath": str(spec.crash_log),
            "EnvironmentVariables": dict(spec.environment),
        }
        return plistlib.dumps(document, sort_keys=False).decode()

    def install(self, spec: ServiceSpec) -> None:
        self._refuse_homebrew()
        spec.crash_log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._unload()
        write_definition(self.file, self.definition(spec))
        self._load()

    def uninstall(self) -> None:
        self._unload()
        self.file.unlink(missing_ok=True)
        # A label that stays disabled would keep a later install from starting.
        for domain in self._domains():
            ask_manager("launchctl", "enable", self._target(domain))

    def start(self) -> None:
        self._must_be_installed()
        self._refuse_homebrew()
        domain = self._loaded_domain()
        if domain is None:
            self._load()
        else:
            self._done(ask_manager("launchctl", "enable", self._target(domain)), "enable")
            self._kick(domain)

    def stop(self) -> None:
        self._must_be_installed()
        # Disabled first: a login between the two commands must not start it again.
        # In every domain: which of them a login loads it into depends on how that login comes about.
        for domain in self._domains():
            self._done(ask_manager("launchctl", "disable", self._target(domain)), "disable")
        self._unload()

    def restart(self) -> None:
        self._must_be_installed()
        self._refuse_homebrew()
        self._unload()
        self._load()

    def status(self) -> ServiceStatus:
        installed = self.file.is_file()
        domain = self._loaded_domain()
        other = "Homebrew's (`brew services`)" if self._is_homebrews() else None
        if domain is None:
            return ServiceStatus(installed, installed and not self._disabled(), running=False, other=other)
        text = ask_manager("launchctl", "print", self._target(domain)).output
        pid = re.search(r"^\s*pid = (\d+)$", text, re.MULTILINE)
        last_exit = re.search(r"^\s*last exit code = (-?\d+)", text, re.MULTILINE)
        return ServiceStatus(
            installed,
            enabled=not self._disabled(),
            running=pid is not None,
            pid=int(pid[1]) if pid else None,
            last_exit=int(last_exit[1]) if last_exit else None,
            where=domain,
            other=other,
        )

    def _target(self, domain: str) -> str:
        return f"{domain}/{self._label}"

    def _domains(self) -> list[str]:
        """`gui/UID` while someone is logged in at the screen, and (over SSH alone) `user/UID`."""
        gui, user = f"gui/{self._uid}", f"user/{self._uid}"
        return [gui, user] if ask_manager("launchctl", "print", gui).code == 0 else [user]

    def _domain(self) -> str:
        return self._domains()[0]

    def _loaded_domain(self) -> str | None:
        for domain in (f"gui/{self._uid}", f"user/{self._uid}"):
            if ask_manager("launchctl", "print", self._target(domain)).code == 0:
                return domain
        return None

    def _disabled(self) -> bool:
        text = ask_manager("launchctl", "print-disabled", self._domain()).output
        # macOS 13 and newer write "disabled", older ones "true".
        return re.search(rf'"{re.escape(self._label)}" => (disabled|true)', text) is not None

    def _load(self) -> None:
        domain = self._domain()
        answer = self._bootstrap(domain)
        if answer.code == 5 and domain.startswith("gui/"):
            # Some Macs refuse every agent in `gui` and take it in `user` (Homebrew/homebrew-services#528).
            domain = f"user/{self._uid}"
            answer = self._bootstrap(domain)
        self._done(answer, "load")
        # In spite of RunAtLoad a job is now and then loaded, not started (oceanbase/powercontext#1480).
        self._kick(self._loaded_domain() or domain)

    def _kick(self, domain: str) -> None:
        """Start it unless it runs."""
        answer = ask_manager("launchctl", "kickstart", self._target(domain))
        if answer.code != _STARTING:
            self._done(answer, "start")

    def _fit(self, domain: str) -> None:
        """Make the plist one that this domain takes."""
        try:
            document = plistlib.loads(self.file.read_bytes())
        except (OSError, ValueError, ExpatError) as error:
            raise ServiceError(
                f"{self.file} can't be read ({error}); `malibu-provider service install` writes it anew"
            ) from None
        wanted = _BACKGROUND if domain.startswith("user/") else None
        if document.get(_SESSION_TYPE) != wanted:
            document.pop(_SESSION_TYPE, None)
            more = {_SESSION_TYPE: wanted} if wanted else {}
            write_definition(self.file, plistlib.dumps({**document, **more}, sort_keys=False).decode())

    def _bootstrap(self, domain: str) -> Answer:
        self._fit(domain)
        self._done(ask_manager("launchctl", "enable", self._target(domain)), "enable")
        answer = Answer(0, "", "")
        for attempt in range(_BOOTSTRAP_TRIES):
            answer = ask_manager("launchctl", "bootstrap", domain, str(self.file))
            # "Bootstrap failed: 5: Input/output error" is also what a job that is already there gets.
            if answer.code == 0 or self._loaded_domain() is not None:
                return Answer(0, "", "")
            if answer.code != 5 or attempt == _BOOTSTRAP_TRIES - 1:
                break
            # Shortly after a bootout the same error passes by itself (openclaw/openclaw#136453).
            self._sleep(_BOOTSTRAP_AGAIN_SECONDS)
        return answer

    def _unload(self) -> None:
        domain = self._loaded_domain()
        if domain is None:
            return
        patience = self._exit_timeout()
        answer = ask_manager("launchctl", "bootout", self._target(domain), patience=patience)
        # 3: no such process, it went by itself; 36: operation now in progress.
        if answer.code not in (0, 3, 36):
            self._done(answer, "unload")
        patience += _GONE_SECONDS
        end = self._clock() + patience
        while self._loaded_domain() is not None:
            if self._clock() >= end:
                raise ServiceError(f"launchd still has {self._label} after {patience:.0f} s; try again")
            self._sleep(_LOOK_AGAIN_SECONDS)

    def _exit_timeout(self) -> float:
        """What the plist gives the daemon to end; launchd's own 20 seconds where it can't be read."""
        try:
            return float(plistlib.loads(self.file.read_bytes())["ExitTimeOut"])
        except (OSError, ValueError, ExpatError, KeyError, TypeError):
            return 20.0

    def _done(self, answer: Answer, what: str) -> None:
        if answer.code == 0:
            return
        words = answer.complaint.splitlines()[0] if answer.complaint else f"code {answer.code}"
        remedy = (
            "; log in at the Mac's screen once, or look at `launchctl print-disabled` and System Settings,"
            " General, Login Items"
            if answer.code == 5
            else ""
        )
        raise ServiceError(f"launchd can't {what} {self._label}: {words}{remedy}")

    def _must_be_installed(self) -> None:
        if not self.file.is_file():
            raise ServiceError("the service is not installed; `malibu-provider service install`")

    def _is_homebrews(self) -> bool:
        # A label of one's own, as `self-test` has, meets nobody's.
        return self._label == LABEL and (self._agents / f"{HOMEBREW_LABEL}.plist").is_file()

    def _refuse_homebrew(self) -> None:
        if self._is_homebrews():
            raise ServiceError(
                "Homebrew runs malibu-provider as a service; `brew services stop malibu-provider` first"
            )
