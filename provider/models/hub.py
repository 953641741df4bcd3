"""Models on Hugging Face, in its own cache, which other programs share.

A model stays at the revision of its first pull: later starts read the cache and ask nobody. `models pull`
fetches the newest, unless the catalogue or the configuration names a revision. Only data files are fetched,
never a repository's Python code.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from provider.engine.model_folder import check_folder, weight_files
from provider.errors import ModelError, ProviderError

# What mlx-lm reads of a repository.
FILES = ["*.json", "model*.safetensors", "tokenizer.model", "*.tiktoken", "*.txt", "*.jinja"]
# What is left free for everything else.
SPARE_BYTES = 1_000_000_000
_SHA256 = re.compile("[0-9a-f]{64}")
_REPOSITORY = re.compile(r"[A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+")


@dataclass(frozen=True, slots=True)
class CachedModel:
    """One repository in the cache. `size_bytes`: of all its files."""

    id: str
    folder: Path
    size_bytes: int


def is_repository(model_id: str) -> bool:
    return _REPOSITORY.fullmatch(model_id) is not None


def cached(repository: str, revision: str | None) -> Path | None:
    """The folder of a repository that is wholly in the cache, else `None`."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        folder = Path(
            snapshot_download(repository, revision=revision, allow_patterns=FILES, local_files_only=True)
        )
        check_folder(repository, folder)
    except (LocalEntryNotFoundError, ProviderError):
        return None
    return folder


def pull(repository: str, revision: str | None, report: Callable[[str], None]) -> Path:
    """Fetch a repository; what is there already is kept, what was cut off is resumed. Raises `ModelError`.

    The disk must hold it all before the first byte is fetched, and the weights must have the hashes that the
    hub gave for them.
    """
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError
    from huggingface_hub.utils.tqdm import disable_progress_bars

    if not sys.stderr.isatty():
        # Bars are for a terminal; a service's file would fill with them.
        disable_progress_bars()
    try:
        plan = snapshot_download(repository, revision=revision, allow_patterns=FILES, dry_run=True)
        missing = sum(file.file_size or 0 for file in plan if file.will_download)
        _check_space(repository, Path(constants.HF_HUB_CACHE), missing)
        report(f"{repository}: fetching {missing / 1e9:.1f} GB from Hugging Face")
        folder = Path(snapshot_download(repository, revision=revision, allow_patterns=FILES))
    except ModelError:
        raise
    except GatedRepoError:
        raise ModelError(
            f"{repository}: its owner asks for consent; give it on Hugging Face, then `hf auth login`"
        ) from None
    except RepositoryNotFoundError:
        raise ModelError(
            f"{repository}: no such model on Hugging Face (or it needs `hf auth login`)"
        ) from None
    except Exception as error:  # the library's HTTP client has changed before; any failure is a failed fetch
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ModelError(f"{repository}: can't be fetched from Hugging Face: {first}") from None
    if missing:
        report(f"{repository}: checking the weights")
        _check_hashes(repository, folder)
    return folder


def _check_space(repository: str, cache: Path, missing: int) -> None:
    while not cache.exists():
        cache = cache.parent
    free = shutil.disk_usage(cache).free
    if free < missing + SPARE_BYTES:
        raise ModelError(
            f"{repository}: {cache} has {free / 1e9:.1f} GB free, {(missing + SPARE_BYTES) / 1e9:.1f} GB are"
            " needed; free some space and try again"
        )


def _check_hashes(repository: str, folder: Path) -> None:
    """A blob that isn't what its name says is deleted, so that the next pull fetches it again."""
    for file in weight_files(folder):
        blob = file.resolve()
        if not _SHA256.fullmatch(blob.name):
            continue
        with blob.open("rb") as stream:
            found = hashlib.file_digest(stream, "sha256").hexdigest()
        if found != blob.name:
            blob.unlink()
            file.unlink()
            raise ModelError(f"{repository}: {file.name} arrived damaged (SHA-256); pull it again")


def revision_of(folder: Path) -> str | None:
    """The commit of a folder in the cache (`…/snapshots/<commit>`)."""
    return folder.name if folder.parent.name == "snapshots" else None


def weights_sha256(folder: Path) -> str | None:
    """The hash of the weights as the cache knows it, without reading them.

    A large file in the cache is a link to a blob named by its SHA-256. Of one file it is that hash; of
    several, the SHA-256 over the lines `<hash>  <name>` in the order of their names.
    """
    files = weight_files(folder)
    blobs = [file.resolve().name for file in files]
    if not all(_SHA256.fullmatch(blob) for blob in blobs):
        return None
    if len(blobs) == 1:
        return blobs[0]
    lines = "".join(f"{blob}  {file.name}\n" for blob, file in zip(blobs, files, strict=True))
    return hashlib.sha256(lines.encode()).hexdigest()


def all_cached() -> list[CachedModel]:
    """Every model in the cache that has weights in a form MLX reads."""
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        repositories = scan_cache_dir().repos
    except CacheNotFound:
        return []
    found = []
    for repository in repositories:
        folder = cached(repository.repo_id, None) if repository.repo_type == "model" else None
        if folder is not None:
            found.append(CachedModel(repository.repo_id, folder, repository.size_on_disk))
    return sorted(found, key=lambda model: model.id)


def remove(repository: str) -> int:
    """Delete every revision of a repository from the cache; the bytes freed, 0 when it wasn't there."""
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        cache = scan_cache_dir()
    except CacheNotFound:
        return 0
    commits = [
        revision.commit_hash
        for repo in cache.repos
        if repo.repo_type == "model" and repo.repo_id == repository
        for revision in repo.revisions
    ]
    strategy = cache.delete_revisions(*commits)
    strategy.execute()
    return strategy.expected_freed_size
