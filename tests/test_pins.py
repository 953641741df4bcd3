"""The pinned set installs on a Mac too, from wheels alone, though no Mac is at hand."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# The oldest macOS that is served: 14, on Apple silicon.
TARGET = {"MACOSX_DEPLOYMENT_TARGET": "14.0"}


def name_of(requirement: str) -> str:
    """The normalised name (PEP 503) of `name[extra]==version`."""
    return re.sub(r"[-_.]+", "-", re.split(r"[\[=; ]", requirement)[0]).lower()


def pins(text: str) -> dict[str, str]:
    lines = [line.split("#")[0].strip() for line in text.splitlines()]
    return {name_of(line): line.partition("==")[2] for line in lines if "==" in line}


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13"])
def test_the_pinned_set_has_wheels_for_apple_silicon(python: str) -> None:
    uv = Path(sys.executable).with_name("uv")
    done = subprocess.run(
        [
            uv,
            *("pip", "compile", "--quiet", "--no-header", "--no-annotate"),
            *("--python-platform", "aarch64-apple-darwin", "--python-version", python),
            *("--only-binary", ":all:", "--constraint", "constraints.txt", "pyproject.toml"),
        ],
        cwd=ROOT,
        env={**os.environ, **TARGET},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    resolved, pinned = pins(done.stdout), pins((ROOT / "constraints.txt").read_text())
    assert {"mlx", "mlx-metal", "mlx-lm"} <= resolved.keys()
    assert {name: pinned.get(name) for name in resolved} == resolved


def test_the_pins_name_no_registry() -> None:
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        assert re.fullmatch(r"[A-Za-z0-9_.-]+==[0-9][A-Za-z0-9.+!]*", line), line
