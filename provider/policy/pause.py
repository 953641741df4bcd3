"""The owner's own pause, kept in a file so that it outlives the daemon: what was stopped stays stopped."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FILE_NAME = "pause.json"


@dataclass(frozen=True, slots=True)
class OwnerPause:
    """Epoch seconds. `until`: `None` until the owner says `resume`."""

    since: float | None
    until: float | None

    def holds(self, now: float) -> bool:
        return self.until is None or now < self.until

    def document(self) -> dict[str, Any]:
        return {"since": self.since, "until": self.until}


class PauseFile:
    """`pause.json` in the state folder. Commands write it too, when no daemon runs."""

    def __init__(self, state: Path) -> None:
        self._file = state / FILE_NAME

    def read(self) -> OwnerPause | None:
        """`None`: the owner lets it serve. A file that can't be read is a pause: somebody asked for one."""
        try:
            document = json.loads(self._file.read_bytes())
            return OwnerPause(_time(document["since"]), _time(document["until"]))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError):
            return OwnerPause(None, None)

    def write(self, pause: OwnerPause) -> None:
        """Replace it whole, so that a crash leaves the old word or the new one. Raises `OSError`."""
        self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = self._file.with_name(f".{FILE_NAME}.new")
        with open(draft, "wb", opener=lambda path, flags: os.open(path, flags, 0o600)) as out:
            out.write(json.dumps(pause.document()).encode() + b"\n")
            out.flush()
            os.fsync(out.fileno())
        draft.replace(self._file)

    def remove(self) -> None:
        self._file.unlink(missing_ok=True)


def _time(value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError("not a time")
    return float(value)
