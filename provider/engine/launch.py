"""Starting the engine's child: its command line, environment and socketpair."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

from provider.engine.ipc import SOCKET_BUFFER_BYTES

# Where Debian and its kin put OpenBLAS; the wheel's own reference BLAS is 50 to 80 times slower.
_OPENBLAS_PATTERNS = (
    "/usr/lib/*-linux-gnu/openblas-pthread/libopenblas.so.0",
    "/usr/lib/*-linux-gnu/openblas-openmp/libopenblas.so.0",
    "/usr/lib/*-linux-gnu/libopenblas.so.0",
    "/usr/lib64/libopenblas.so.0",
    "/usr/lib64/libopenblasp.so.0",
    "/usr/lib/libopenblas.so",
)

_MOST_BLAS_THREADS = 8


def find_openblas() -> Path | None:
    """OpenBLAS on this Linux machine; `None` elsewhere or where there is none."""
    if not sys.platform.startswith("linux"):
        return None
    root = Path("/")
    for pattern in _OPENBLAS_PATTERNS:
        found = sorted(root.glob(pattern.lstrip("/")))
        if found:
            return found[0]
    return None


def child_environment(base: Mapping[str, str]) -> dict[str, str]:
    """The child's environment: offline, quiet, with OpenBLAS before the reference BLAS on Linux."""
    environment = dict(base)
    environment |= {
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "TRANSFORMERS_VERBOSITY": "error",
        "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONUNBUFFERED": "1",
    }
    openblas = find_openblas()
    if openblas is not None:
        # More threads than this cost a small step more than they save.
        threads = min(len(os.sched_getaffinity(0)), _MOST_BLAS_THREADS)
        environment.setdefault("OPENBLAS_NUM_THREADS", str(threads))
        preload = environment.get("LD_PRELOAD", "")
        environment["LD_PRELOAD"] = f"{openblas}:{preload}" if preload else str(openblas)
    return environment


async def spawn_child() -> tuple[asyncio.subprocess.Process, socket.socket]:
    """Start a child; returns it and the daemon's end of the socketpair, non-blocking."""
    ours, theirs = socket.socketpair()
    with theirs:
        for end in (ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BUFFER_BYTES)
        ours.setblocking(False)
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "provider.engine.child",
                str(theirs.fileno()),
                pass_fds=(theirs.fileno(),),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                env=child_environment(os.environ),
                # Its own session: a terminal's Ctrl-C reaches the daemon alone.
                start_new_session=True,
            )
        except BaseException:
            ours.close()
            raise
    return process, ours
