"""What does a dispatch cost in a large pool? A simulation in virtual time, run as a process of its own:

    python tests/provider/local_gateway/dispatch_simulation.py [--json]

For each pool the same load for each provider: requests arrive, are placed, wait or run, end. Timed is what
the gateway does for a request in all: choosing, reserving, queueing, releasing, remembering its prefix. It is
timed by this thread's own clock, to which it is all one what else the machine does.
"""

from __future__ import annotations

import heapq
import itertools
import json
import random
import sys
import time
from dataclasses import dataclass, field

from provider.local_gateway.dispatch import Candidate, Dispatch
from provider.local_gateway.fair_queue import FairQueue

POOLS = (10, 100, 1000)
REQUESTS = 10_000
MODELS = ("small", "large")
SLOTS = 4


@dataclass(order=True)
class Request:
    at: float
    key: str = field(compare=False)
    model: str = field(compare=False)
    seconds: float = field(compare=False)
    prefixes: tuple[bytes, ...] = field(compare=False)


class Pool:
    """The gateway's dispatch and queue, driven by a heap of events."""

    def __init__(self, providers: int, chance: random.Random) -> None:
        self.dispatch = Dispatch()
        self.queue: FairQueue[Request] = FairQueue(64)
        self.refused = self.placed = 0
        self.spent = 0.0
        self._ends: list[tuple[float, int, str, Request]] = []
        self._count = itertools.count()
        for number in range(providers):
            models = frozenset(MODELS if number % 3 == 0 else MODELS[number % 2 : number % 2 + 1])
            speed = chance.choice([20.0, 40.0, 80.0])
            candidate = Candidate(f"p{number}", models, SLOTS, decode_tokens_per_s=speed)
            self.dispatch.put(candidate, 0.0)

    def run(self, requests: list[Request]) -> None:
        for request in requests:
            while self._ends and self._ends[0][0] <= request.at:
                self._end(*heapq.heappop(self._ends))
            self._arrive(request)
        while self._ends:
            self._end(*heapq.heappop(self._ends))

    def _arrive(self, request: Request) -> None:
        begin = time.thread_time()
        chosen = self.dispatch.choose(request.model, request.at, prefixes=request.prefixes)
        if chosen is not None:
            self.dispatch.reserve(chosen, request.at)
        elif not self.queue.full:
            self.queue.add(request.key, request)
        else:
            self.refused += 1
        self.spent += time.thread_time() - begin
        if chosen is not None:
            self._start(request, chosen, request.at)

    def _start(self, request: Request, provider_id: str, now: float) -> None:
        self.placed += 1
        heapq.heappush(self._ends, (now + request.seconds, next(self._count), provider_id, request))

    def _end(self, now: float, _: int, provider_id: str, request: Request) -> None:
        begin = time.thread_time()
        self.dispatch.succeeded(provider_id, now)
        self.dispatch.remember(request.prefixes[:1], provider_id)
        self.dispatch.release(provider_id, now)
        candidate = self.dispatch.get(provider_id)
        assert candidate is not None
        following = self.queue.take(lambda waiting: waiting.model in candidate.models)
        if following is not None:
            self.dispatch.reserve(provider_id, now)
        self.spent += time.thread_time() - begin
        if following is not None:
            self._start(following, provider_id, now)


def load(providers: int, chance: random.Random) -> list[Request]:
    """Conversations of several turns, at nine tenths of what the pool can carry."""
    per_second = 0.9 * providers * SLOTS / 2.0
    requests = []
    now = 0.0
    turns: dict[int, int] = {}
    for _ in range(REQUESTS):
        now += chance.expovariate(per_second)
        talk = chance.randrange(REQUESTS // 5)
        turn = turns[talk] = turns.get(talk, 0) + 1
        prefixes = tuple(f"{talk}:{length}".encode() for length in range(turn, max(0, turn - 4), -1))
        requests.append(
            Request(
                at=now,
                key=f"key{talk % 20}",
                model=MODELS[talk % 2],
                seconds=chance.uniform(0.5, 3.5),
                prefixes=prefixes,
            )
        )
    return requests


def simulate(providers: int) -> dict[str, float]:
    chance = random.Random(1)
    pool = Pool(providers, chance)
    pool.run(load(providers, chance))
    return {
        "providers": providers,
        "requests": REQUESTS,
        "us_per_request": round(pool.spent / REQUESTS * 1e6, 2),
        "placed": pool.placed,
        "refused": pool.refused,
    }


def main() -> None:
    rows = [simulate(providers) for providers in POOLS]
    if "--json" in sys.argv:
        print(json.dumps(rows))
        return
    print(f"{'providers':>9} {'requests':>9} {'µs/request':>11} {'placed':>7} {'refused':>8}")
    for row in rows:
        print(
            f"{row['providers']:>9} {row['requests']:>9} {row['us_per_request']:>11}"
            f" {row['placed']:>7} {row['refused']:>8}"
        )


if __name__ == "__main__":
    main()
