"""An indexed list that can be read from any place: choosing costs the same however long it is. Pure."""

from __future__ import annotations


class FreeList:
    """Providers with a free slot for one model: add, discard and the n-th after a moving start in O(1)."""

    def __init__(self) -> None:
        self._items: list[str] = []
        self._at: dict[str, int] = {}
        self._start = 0

    def __len__(self) -> int:
        return len(self._items)

    def add(self, provider_id: str) -> None:
        if provider_id not in self._at:
            self._at[provider_id] = len(self._items)
            self._items.append(provider_id)

    def discard(self, provider_id: str) -> None:
        at = self._at.pop(provider_id, None)
        if at is None:
            return
        last = self._items.pop()
        if last != provider_id:
            self._items[at] = last
            self._at[last] = at

    def look(self, count: int) -> list[str]:
        """Up to `count` of them, each time a different stretch of the list."""
        size = len(self._items)
        if size <= count:
            return list(self._items)
        start = self._start % size
        self._start = start + count
        return [self._items[(start + step) % size] for step in range(count)]

    def __contains__(self, provider_id: str) -> bool:
        return provider_id in self._at
