"""Tells the gateway how this machine stands: once a minute and at each change of state, signed.

Reports never disturb serving. One that can't be delivered is not kept: the next try, later and later, sends
what holds then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import structlog

from provider.unreachable import unreachable_words

log = structlog.get_logger("reporter")

Snapshot = Mapping[str, Any]

INTERVAL_S = 60.0
LOOK_S = 1.0
_FIRST_RETRY_S = 5.0
_LAST_RETRY_S = 300.0
_TIMEOUT_S = 10.0


def report_url(gateway_url: str, provider_id: str) -> str:
    """Where reports go unless `status.url` says otherwise: the gateway's own origin, by HTTP."""
    parts = urlsplit(gateway_url)
    scheme = {"ws": "http", "wss": "https"}[parts.scheme]
    return f"{scheme}://{parts.netloc}/v1/providers/{provider_id}/status"


def snapshot(document: Mapping[str, Any], presence: Mapping[str, Any], at_ms: int) -> dict[str, Any]:
    """What a report says, each member picked by name: a new one in the status document doesn't leak.

    `presence`: the heartbeat's state, reason and counts. Nothing of a request, an answer, a buyer, a host.
    """
    process, link = document["process"], document["link"]
    return {
        "v": 1,
        "provider_id": process["provider_id"],
        "at_ms": at_ms,
        "version": process["version"],
        "contract": process["contract"],
        "uptime_s": process["uptime_s"],
        "state": presence["state"],
        "reason": presence["reason"],
        "slots_total": presence["slots_total"],
        "slots_free": presence["slots_free"],
        "queued": presence["queued"],
        "models": [{"id": model["id"], "state": model["state"]} for model in document["models"]],
        "registered": link["registered"],
        "routable": link["routable"],
        "not_routable_reasons": link["reasons"],
        "engine_restarts": document["engine"]["restarts"],
        "jobs": {key: document["counters"][f"jobs_{key}"] for key in _JOB_COUNTS},
    }


_JOB_COUNTS = ("completed", "failed", "cancelled", "rejected")


def state_of(report: Snapshot) -> tuple[object, ...]:
    """The part of a report whose change is reported at once."""
    models = tuple((model["id"], model["state"]) for model in report["models"])
    return (report["state"], report["reason"], report["routable"], models)


@dataclass(slots=True)
class ReportSchedule:
    """When to send. Pure: times are seconds on one monotonic clock; `chance` gives numbers in [0, 1).

    It begins as if a report had failed: a gateway that hasn't registered this provider can't check one.
    `next_at`: when that is tried all the same.
    """

    chance: Callable[[], float]
    next_at: float
    interval_s: float = INTERVAL_S
    retry_s: float = _FIRST_RETRY_S
    failing: bool = True
    told: tuple[object, ...] | None = None

    def due(self, now: float, state: tuple[object, ...]) -> bool:
        """After a failure only the time counts, or changes would hammer a gateway that can't be reached."""
        changed = state != self.told and not self.failing
        return changed or now >= self.next_at

    def sent(self, now: float, state: tuple[object, ...]) -> None:
        self.told = state
        self.failing = False
        self.retry_s = _FIRST_RETRY_S
        self.next_at = now + self.interval_s

    def failed(self, now: float) -> None:
        """Twice as late each time, with as much jitter again at most."""
        self.failing = True
        self.next_at = now + self.retry_s * (1 + self.chance())
        self.retry_s = min(self.retry_s * 2, _LAST_RETRY_S)

    def retry_now(self) -> None:
        """What stood in the way may be gone: the gateway has just registered this provider."""
        if self.failing:
            self.retry_s = _FIRST_RETRY_S
            self.next_at = 0.0


class Reporter:
    """`run` is the loop. `take`: the report of this moment; `sign`: makes it a token.

    `send`: posts a token, returns `None` or what went wrong in a few words; `post` is the real one.
    """

    def __init__(
        self,
        *,
        take: Callable[[], dict[str, Any]],
        sign: Callable[[Snapshot], str],
        send: Callable[[str], Awaitable[str | None]],
        schedule: ReportSchedule,
        clock: Callable[[], float],
        look_s: float = LOOK_S,
    ) -> None:
        self._take = take
        self._sign = sign
        self._send = send
        self._schedule = schedule
        self._clock = clock
        self._look_s = look_s
        self.sent = 0
        self.failed = 0
        self.last_error: str | None = None
        self.last_sent_ms: int | None = None

    async def run(self) -> None:
        was_registered = False
        while True:
            report = self._take()
            if report["registered"] and not was_registered:
                self._schedule.retry_now()
            was_registered = report["registered"]
            if self._schedule.due(self._clock(), state_of(report)):
                await self._deliver(report)
            await asyncio.sleep(self._look_s)

    async def _deliver(self, report: dict[str, Any]) -> None:
        error = await self._send(self._sign(report))
        now = self._clock()
        if error is None:
            self._schedule.sent(now, state_of(report))
            self.sent += 1
            self.last_sent_ms = report["at_ms"]
        else:
            self._schedule.failed(now)
            self.failed += 1
        if error != self.last_error:
            log.info("status_report", error=error)
        self.last_error = error

    def document(self, url: str) -> dict[str, Any]:
        """The `reports` member of the status document."""
        return {
            "url": url,
            "sent": self.sent,
            "failed": self.failed,
            "last_sent_ms": self.last_sent_ms,
            "last_error": self.last_error,
        }


async def post(session: aiohttp.ClientSession, url: str, token: str) -> str | None:
    """Send one report. Redirects are refused: a signed report goes where the owner said, or nowhere."""
    try:
        async with session.post(
            url,
            data=token.encode("ascii"),
            headers={"Content-Type": "application/jose"},
            allow_redirects=False,
            timeout=aiohttp.ClientTimeout(total=_TIMEOUT_S),
        ) as response:
            return None if response.status < 300 else f"HTTP {response.status}"
    except TimeoutError:
        return "no answer in time"
    except aiohttp.ClientConnectorCertificateError:
        return "its certificate isn't valid"
    except aiohttp.ClientConnectorError as error:
        return unreachable_words(error.os_error)
    except aiohttp.ServerDisconnectedError:
        return unreachable_words(EOFError())
    except (aiohttp.InvalidURL, UnicodeError):
        # Only an attempt tells which names no host can have.
        return unreachable_words(UnicodeError())
    except (aiohttp.ClientError, OSError) as error:
        return unreachable_words(error)
