"""Where it was measured: what a figure means nothing without."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

from bench.systems import environment
from provider.engine.launch import find_openblas


def machine() -> dict[str, Any]:
    openblas = find_openblas()
    return {
        "os": f"{platform.system()} {platform.machine()}",
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "device": "gpu" if platform.system() == "Darwin" else "cpu",
        "blas": openblas.name if openblas is not None else None,
        "blas_threads": environment().get("OPENBLAS_NUM_THREADS") if openblas is not None else None,
        "python": platform.python_version(),
        "mlx": version("mlx"),
        "mlx_lm": version("mlx-lm"),
        "load_average": [round(value, 1) for value in os.getloadavg()],
    }


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()
