"""`scripts/soak`: load, cancels, nonsense, slow readers, killed engines and cut links; then who has grown?"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import sys
import time
from collections import Counter
from typing import Any

from soak.buyers import Crowd
from soak.growth import Rest, grown
from soak.world import QUESTIONS, World, idle

BUYERS = 12
REST_SECONDS = 60.0
# A process that was just killed has to load its model before it is idle again.
IDLE_SECONDS = 90.0
TROUBLE_SECONDS = (3.0, 8.0)
KILL_APART_SECONDS = 20.0
LOOK_AGAIN_SECONDS = 0.2
# The second rest has to be worth comparing with the first, however short the run.
LEAST_RESTS = 3


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class Soak:
    """One run. `measure` returns its document; `faults` in it is what went wrong, empty if nothing did."""

    def __init__(self, world: World, seconds: float, seed: int) -> None:
        self._world = world
        self._seconds = seconds
        self._seed = seed
        self._chance = random.Random(seed)
        self._crowd = Crowd(world.port, QUESTIONS, random.Random(seed + 1))
        self._rests: dict[str, list[Rest]] = {}
        self._troubles: Counter[str] = Counter()
        self._faults: list[str] = []
        self._killed_at = 0.0

    async def measure(self) -> dict[str, Any]:
        began = time.monotonic()
        rounds = max(LEAST_RESTS, round(self._seconds / REST_SECONDS))
        async with asyncio.TaskGroup() as tasks:
            for number in range(BUYERS):
                tasks.create_task(self._crowd.run(), name=f"buyer-{number}")
            try:
                for number in range(rounds):
                    await self._trouble(self._seconds / rounds)
                    await self._rest(last=number == rounds - 1)
            finally:
                self._crowd.closing.set()
                self._crowd.admitting.set()
        for name, rests in self._rests.items():
            self._faults += grown(name, rests)
        return self._document(time.monotonic() - began)

    async def _trouble(self, seconds: float) -> None:
        end_at = time.monotonic() + seconds
        while (left := end_at - time.monotonic()) > 0:
            await asyncio.sleep(min(left, self._chance.uniform(*TROUBLE_SECONDS)))
            if time.monotonic() < end_at:
                await self._one_trouble()

    async def _one_trouble(self) -> None:
        place = self._chance.randrange(len(self._world.daemons))
        daemon, relay = self._world.daemons[place], self._world.relays[place]
        if self._chance.random() < 0.5 and time.monotonic() - self._killed_at > KILL_APART_SECONDS:
            if await daemon.kill_child():
                self._killed_at = time.monotonic()
                self._troubles[f"{daemon.name}: child killed"] += 1
            return
        relay.cut()
        self._troubles[f"{daemon.name}: link cut"] += 1

    async def _rest(self, *, last: bool) -> None:
        """Let everyone finish, and look at each process while it has nothing to do."""
        crowd = self._crowd
        crowd.admitting.clear()
        await self._until_idle()
        world = self._world
        self._rests.setdefault("gateway", []).append(world.gateway.rest())
        for daemon in world.daemons:
            status = await daemon.status()
            self._rests.setdefault(daemon.name, []).append(daemon.rest(status["process"]["tasks"]))
            child = daemon.child_rest(status["engine"]["child_pid"])
            if child is not None:
                self._rests.setdefault(f"{daemon.name}'s child", []).append(child)
        say(f"{sum(crowd.tally.kinds.values())} requests so far, {len(crowd.tally.faults)} without one end")
        if not last:
            crowd.admitting.set()

    async def _until_idle(self) -> None:
        end_at = time.monotonic() + IDLE_SECONDS
        waiting: list[str] = []
        while time.monotonic() < end_at:
            waiting = ["the buyers"] if self._crowd.open else []
            for daemon in self._world.daemons:
                if not idle(await daemon.status()):
                    waiting.append(daemon.name)
                    await daemon.command("reconnect")
            if not waiting:
                return
            await asyncio.sleep(LOOK_AGAIN_SECONDS)
        self._faults.append(f"not idle after {IDLE_SECONDS:.0f} s: {', '.join(waiting)}")

    def _document(self, seconds: float) -> dict[str, Any]:
        tally = self._crowd.tally
        ended = [process.name for process in self._world.processes if not process.alive]
        faults = [*self._faults, *tally.faults, *(f"{name} has ended by itself" for name in ended)]
        return {
            "seconds": round(seconds, 1),
            "seed": self._seed,
            "requests": dict(tally.kinds),
            "ends": dict(tally.ends),
            "troubles": dict(self._troubles),
            "processes": {
                name: {
                    figure: [getattr(rest, figure) for rest in rests]
                    for figure in ("pid", "rss_mib", "fds", "threads", "tasks")
                }
                for name, rests in self._rests.items()
            },
            "faults": faults,
        }


def show(document: dict[str, Any]) -> None:
    print(f"{document['seconds']:.0f} s, seed {document['seed']}")
    for title in ("requests", "ends", "troubles"):
        told = ", ".join(f"{name} {count}" for name, count in sorted(document[title].items()))
        print(f"{title}: {told or 'none'}")
    for name, figures in document["processes"].items():
        pairs = (f"{figure} {figures[figure][0]} → {figures[figure][-1]}" for figure in figures)
        print(f"{name}: {', '.join(pairs)}")
    for fault in document["faults"]:
        print(f"FAULT: {fault}")


async def soak(seconds: float, seed: int) -> dict[str, Any]:
    async with World(say) as world:
        return await Soak(world, seconds, seed).measure()


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/soak", description="Mixed load on real processes; exit 1 on growth or a lost job."
    )
    parser.add_argument("--minutes", type=float, default=5.0, help="how long (default 5)")
    parser.add_argument("--seed", type=int, default=None, help="of everything that is left to chance")
    parser.add_argument("--json", action="store_true", help="one JSON document on standard output")
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(1 << 31) if options.seed is None else options.seed
    say(f"soak: {options.minutes:g} minutes, seed {seed}")
    with contextlib.suppress(KeyboardInterrupt):
        document = asyncio.run(soak(options.minutes * 60, seed))
        if options.json:
            print(json.dumps(document, indent=2))
        else:
            show(document)
        return 1 if document["faults"] else 0
    return 130


if __name__ == "__main__":
    sys.exit(main())
