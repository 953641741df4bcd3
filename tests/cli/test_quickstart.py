"""The first thing anyone does with this repository, from an empty clone to a first answer by a real model."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.cli.processes import free_port

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_an_empty_clone_answers(tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MALIBU_PROVIDER_")}
    environment = kept | {
        "MALIBU_PROVIDER_HOME": str(tmp_path / "home"),
        # Nothing fetched or converted before may help.
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        # What another environment leaves behind must not get in the way.
        "PYTHONPATH": "/nowhere",
        "VIRTUAL_ENV": "/nowhere",
    }
    done = subprocess.run(
        [clone / "scripts" / "quickstart", "--once", "--port", str(free_port())],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"smollm2-135m-instruct: .*[a-z]", done.stdout)
    assert re.search(r'smollm2-135m-instruct: get_weather\(\{"city": ".*", "unit": "\w+"\}\)', done.stdout)
    assert re.search(r"\(\d+ tokens, first after [\d.]+ s", done.stdout)
    assert "OpenBLAS" in done.stderr or shutil.which("sw_vers")
    assert "Traceback" not in done.stderr
