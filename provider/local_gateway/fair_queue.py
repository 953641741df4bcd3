"""The gateway's queue: requests that wait for a free slot, round-robin over API keys. Pure."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class FairQueue(Generic[T]):
    """First in, first out for one key; the keys take turns, so one key's backlog delays no other.

    `length`: how many may wait in all.
    """

    def __init__(self, length: int) -> None:
        self._length = length
        self._size = 0
        self._by_key: OrderedDict[str, deque[T]] = OrderedDict()

    def __len__(self) -> int:
        return self._size

    @property
    def full(self) -> bool:
        return self._size >= self._length

    def add(self, key: str, item: T, *, first: bool = False) -> None:
        """Wait at the end of this key's line, or at its head (`first`: it has waited before)."""
        line = self._by_key.setdefault(key, deque())
        if first:
            line.appendleft(item)
        else:
            line.append(item)
        self._size += 1

    def remove(self, key: str, item: T) -> bool:
        """Leave the queue; False if the item wasn't in it."""
        line = self._by_key.get(key)
        if line is None or item not in line:
            return False
        line.remove(item)
        self._left(key, line)
        return True

    def take(self, fits: Callable[[T], bool]) -> T | None:
        """The next item in turn that `fits`; its key goes to the end of the turn."""
        for key, line in self._by_key.items():
            for item in line:
                if fits(item):
                    line.remove(item)
                    self._by_key.move_to_end(key)
                    self._left(key, line)
                    return item
        return None

    def _left(self, key: str, line: deque[T]) -> None:
        self._size -= 1
        if not line:
            del self._by_key[key]
