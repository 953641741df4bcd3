"""The npm packages of this folder, installed once into a cache outside the checkout; scripts run on them."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
CACHE = Path(os.environ.get("MALIBU_TEST_CACHE", Path.home() / ".cache" / "malibu-provider-tests"))
INSTALL = ["npm", "install", "--no-audit", "--no-fund", "--package-lock=false", "--ignore-scripts"]
SECONDS = 120


def node_modules() -> Path:
    """The folder of the installed packages; named by what package.json asks for."""
    wanted = (HERE / "package.json").read_bytes()
    folder = CACHE / f"node-{hashlib.sha256(wanted).hexdigest()[:16]}"
    if not folder.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=".node-", dir=CACHE))
        (work / "package.json").write_bytes(wanted)
        subprocess.run(INSTALL, cwd=work, check=True, capture_output=True, timeout=600)
        try:
            work.rename(folder)
        except OSError:  # another worker was quicker
            shutil.rmtree(work)
    return folder / "node_modules"


def versions() -> dict[str, str]:
    """What is installed, by name."""
    packages = [json.loads(file.read_bytes()) for file in node_modules().rglob("package.json")]
    return {one["name"]: one["version"] for one in packages if "name" in one and "version" in one}


async def run(folder: Path, script: str, *arguments: str, stdin: Any = None) -> Any:
    """Run one of this folder's scripts in `folder`; the JSON that it printed."""
    packages = await asyncio.to_thread(node_modules)
    # Packages are looked for beside the script, so it goes where a link to them is.
    shutil.copy(HERE / script, folder)
    if not (folder / "node_modules").exists():
        (folder / "node_modules").symlink_to(packages)
    process = await asyncio.create_subprocess_exec(
        "node",
        str(folder / script),
        *arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(SECONDS):
        out, err = await process.communicate(b"" if stdin is None else json.dumps(stdin).encode())
    assert process.returncode == 0, err.decode()
    return json.loads(out)
