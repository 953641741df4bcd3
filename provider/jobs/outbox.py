"""Everything that was made for the gateway and that the gateway has not acknowledged yet.

    append ─▶ pieces ──seal──▶ chunks (numbered, chained) ──next_frame──▶ wire ──acknowledge──▶ forgotten
                 └─ joined only at the bound      └─ rewind (link cut), resume(from_seq): sent again unchanged

Pure. One `Outbox` outlives every link. Pieces become chunks when they are first pulled, so number and chain
are the last thing to be decided; from then on the bytes of a frame never change, and a replay is exact.
A job keeps at most 8 MiB here, all jobs 64 MiB: at the bound neighbouring pieces are joined, and if that
isn't enough the job's decoding has to wait (docs/protocol.md, "Nothing lost on a cut link").
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from gateway_protocol.limits import OUTBOX_JOB_BYTES, OUTBOX_TOTAL_BYTES
from provider.jobs.pieces import OVERHEAD_BYTES, Piece, can_join, join

Seal = Callable[[int, Piece], str]
"""(seq, piece) → the encoded `job_chunk`. Called once for each seq, in order."""

Terminal = Callable[[int], str]
"""(number of chunks) → the encoded terminal frame. Called once, after the last chunk was sealed."""


class JobOutbox:
    """One job's frames. Its first frame (`job_accepted`) is repeated until anything was acknowledged."""

    def __init__(self, job_id: str, attempt: int, seal: Seal) -> None:
        self.job_id = job_id
        self.attempt = attempt
        self.bytes = 0
        self.waiting = False
        self._seal = seal
        self._opening: str | None = None
        self._opening_sent = True
        self._pieces: deque[Piece] = deque()
        self._joining = False
        self._frames: deque[str] = deque()
        self._first_seq = 0
        self._sent = 0
        self._terminal: Terminal | None = None
        self._terminal_frame: str | None = None
        self._terminal_sent = False

    @property
    def next_seq(self) -> int:
        """The sequence number after the last chunk that was sealed."""
        return self._first_seq + len(self._frames)

    @property
    def finished(self) -> bool:
        return self._terminal is not None

    @property
    def has_unsent(self) -> bool:
        return (
            not self._opening_sent
            or self._sent < len(self._frames)
            or bool(self._pieces)
            or (self._terminal is not None and not self._terminal_sent)
        )

    def open_with(self, frame: str) -> None:
        self._opening, self._opening_sent = frame, False

    def append(self, piece: Piece) -> None:
        if self._joining and self._pieces and can_join(self._pieces[-1], piece):
            last = self._pieces.pop()
            self.bytes -= last.size
            piece = join((last, piece))[0]
        self._pieces.append(piece)
        self.bytes += piece.size

    def join_pieces(self) -> None:
        """Join what was not sealed yet, and whatever comes until the job is below its bound again."""
        if not self._joining:
            self.bytes -= sum(piece.size for piece in self._pieces)
            self._pieces = deque(join(self._pieces))
            self.bytes += sum(piece.size for piece in self._pieces)
            self._joining = True

    def stop_joining(self) -> None:
        self._joining = False

    def discard_pieces(self) -> None:
        """Forget what was not sealed: the buyer has left."""
        self.bytes -= sum(piece.size for piece in self._pieces)
        self._pieces.clear()

    def finish(self, terminal: Terminal) -> None:
        if self._terminal is not None:
            raise RuntimeError("a job has exactly one terminal frame")
        self._terminal = terminal

    def next_frame(self) -> str | None:
        """The next frame to send, sealing the next piece if need be."""
        if not self._opening_sent:
            self._opening_sent = True
            return self._opening
        if self._sent < len(self._frames):
            frame = self._frames[self._sent]
        elif self._pieces:
            piece = self._pieces.popleft()
            frame = self._seal(self.next_seq, piece)
            self.bytes += len(frame) + OVERHEAD_BYTES - piece.size
            self._frames.append(frame)
        else:
            return self._next_terminal()
        self._sent += 1
        return frame

    def _next_terminal(self) -> str | None:
        if self._terminal is None or self._terminal_sent:
            return None
        if self._terminal_frame is None:
            self._terminal_frame = self._terminal(self.next_seq)
        self._terminal_sent = True
        return self._terminal_frame

    def acknowledge(self, seq: int) -> bool:
        """Forget chunks up to and including `seq`; whether the terminal frame is acknowledged, too."""
        self._opening_sent = True
        self._opening = None
        while self._frames and self._first_seq <= seq:
            self.bytes -= len(self._frames.popleft()) + OVERHEAD_BYTES
            self._first_seq += 1
            self._sent = max(0, self._sent - 1)
        return self._terminal_frame is not None and seq >= self.next_seq

    def rewind(self) -> None:
        """The link is gone: all that is unacknowledged counts as unsent."""
        self._sent = 0
        self._opening_sent = self._opening is None
        self._terminal_sent = False

    def resume(self, from_seq: int) -> bool:
        """Go on at `from_seq`; False where that isn't possible (forgotten already, or never made)."""
        if not self._first_seq <= from_seq <= self.next_seq:
            return False
        if from_seq > 0:
            self.acknowledge(from_seq - 1)
        return True


class Outbox:
    """The outboxes of all jobs, and fair turns between them. Keys are job IDs: one attempt at a time."""

    def __init__(self, *, job_bytes: int = OUTBOX_JOB_BYTES, total_bytes: int = OUTBOX_TOTAL_BYTES) -> None:
        self._job_bytes = job_bytes
        self._total_bytes = total_bytes
        self._jobs: dict[str, JobOutbox] = {}
        self._turns: deque[str] = deque()
        self._in_turn: set[str] = set()
        self._tight: set[str] = set()
        self.bytes = 0

    def open(self, job_id: str, attempt: int, seal: Seal) -> None:
        if job_id in self._jobs:
            raise RuntimeError("the job has an outbox already")
        self._jobs[job_id] = JobOutbox(job_id, attempt, seal)

    def __contains__(self, job_id: str) -> bool:
        return job_id in self._jobs

    def __len__(self) -> int:
        return len(self._jobs)

    def jobs(self) -> Iterable[JobOutbox]:
        return self._jobs.values()

    def job(self, job_id: str) -> JobOutbox:
        return self._jobs[job_id]

    def accept(self, job_id: str, frame: str) -> None:
        """Queue the encoded `job_accepted`, which goes before every chunk of the job."""
        self._jobs[job_id].open_with(frame)
        self._take_turn(job_id)

    def append(self, job_id: str, pieces: Iterable[Piece]) -> bool:
        """Queue pieces; True when the job's decoding has to wait until `acknowledge` says otherwise."""
        job = self._jobs[job_id]
        before = job.bytes
        for piece in pieces:
            job.append(piece)
        self.bytes += job.bytes - before
        if self._over(job):
            before = job.bytes
            job.join_pieces()
            self.bytes += job.bytes - before
            job.waiting = self._over(job)
            self._tight.add(job_id)
        self._take_turn(job_id)
        return job.waiting

    def finish(self, job_id: str, terminal: Terminal, *, discard: bool = False) -> None:
        """Queue the terminal frame behind what is there (`discard`: behind what was sealed)."""
        job = self._jobs[job_id]
        if discard:
            before = job.bytes
            job.discard_pieces()
            self.bytes += job.bytes - before
        job.finish(terminal)
        self._take_turn(job_id)

    def next_frame(self) -> str | None:
        """The next frame to put on the wire, jobs taking turns; `None`: nothing is waiting."""
        while self._turns:
            job_id = self._turns.popleft()
            job = self._jobs.get(job_id)
            if job is None:
                self._in_turn.discard(job_id)
                continue
            before = job.bytes
            frame = job.next_frame()
            self.bytes += job.bytes - before
            if job.has_unsent:
                self._turns.append(job_id)
            else:
                self._in_turn.discard(job_id)
            if frame is not None:
                return frame
        return None

    def acknowledge(self, job_id: str, attempt: int, seq: int) -> tuple[bool, list[str]]:
        """(whether the job is over and forgotten, the jobs whose decoding may go on).

        An acknowledgement of an unknown job or another attempt changes nothing.
        """
        job = self._jobs.get(job_id)
        if job is None or job.attempt != attempt:
            return False, []
        before = job.bytes
        over = job.acknowledge(seq)
        self.bytes += job.bytes - before
        if over:
            self.drop(job_id)
        return over, self.released()

    def rewind(self) -> None:
        """A new link stands: forget what the old one was sent, pull nothing but what `resume` then names."""
        for job in self._jobs.values():
            job.rewind()
        self._turns.clear()
        self._in_turn.clear()

    def resume(self, job_id: str, attempt: int, from_seq: int) -> bool:
        """Replay a job from `from_seq`; False when it isn't here: the gateway must not wait for it."""
        job = self._jobs.get(job_id)
        if job is None or job.attempt != attempt:
            return False
        before = job.bytes
        resumed = job.resume(from_seq)
        self.bytes += job.bytes - before
        if resumed and job.has_unsent:
            self._take_turn(job_id)
        return resumed

    def drop(self, job_id: str) -> None:
        job = self._jobs.pop(job_id, None)
        if job is not None:
            self.bytes -= job.bytes
            self._tight.discard(job_id)

    def _over(self, job: JobOutbox) -> bool:
        return job.bytes > self._job_bytes or self.bytes > self._total_bytes

    def released(self) -> list[str]:
        """The jobs whose decoding may go on, each named once; `resume` and `drop` free room, too."""
        released: list[str] = []
        if self._tight and self.bytes <= self._total_bytes * 3 // 4:
            for job_id in [*self._tight]:
                job = self._jobs[job_id]
                if job.bytes <= self._job_bytes // 2:
                    self._tight.discard(job_id)
                    job.stop_joining()
                    if job.waiting:
                        job.waiting = False
                        released.append(job_id)
        return released

    def _take_turn(self, job_id: str) -> None:
        if job_id not in self._in_turn:
            self._in_turn.add(job_id)
            self._turns.append(job_id)
