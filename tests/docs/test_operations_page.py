"""docs/operations.md names what the code knows, and what it tells one to type exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cli.doctor.checks import LEAST_FREE_BYTES, MOST_SKEW_SECONDS
from provider.config import PolicySection, known_keys
from provider.policy.rules import RESUME_AFTER_SECONDS, PauseReason
from tests.docs.typed import all_flags, check_command, commands, spans

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "operations.md").read_text("utf-8")


def test_every_reason_to_pause_and_every_key_is_told() -> None:
    for reason in PauseReason:
        assert f"`{reason.value}`" in PAGE
    for key in PolicySection.model_fields:
        assert f"`{key}`" in PAGE or f"policy.{key}" in PAGE
    assert f"good for {RESUME_AFTER_SECONDS:.0f}\nseconds" in PAGE


@pytest.mark.parametrize("words", sorted(commands(PAGE)), ids=" ".join)
def test_every_command_exists(words: tuple[str, ...]) -> None:
    check_command(words)


def test_every_flag_exists() -> None:
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", PAGE)) <= all_flags()


def test_every_key_of_the_configuration_exists() -> None:
    sections = {key.partition(".")[0] for key in known_keys() if "." in key}
    named = {match[0] for span in spans(PAGE) if (match := re.match(r"[a-z_]+\.[a-z_]+", span))}
    keys = {name for name in named if name.partition(".")[0] in sections}
    assert keys
    # One is the example of a slip.
    assert keys - {"engine.slotz"} <= set(known_keys())


def test_each_check_of_doctor_is_told() -> None:
    told = set(re.findall(r"(?m)^\| `([a-z_]+)` \| [^|]+\|$", PAGE.partition("## What doctor looks at")[2]))
    files = [ROOT / "cli" / "doctor" / name for name in ("checks.py", "run.py")]
    source = "".join(file.read_text("utf-8") for file in files)
    asked = set(re.findall(r'(?:ok|failing|unknown|check_private)\(\s*"([a-z_]+)"', source))
    asked |= set(re.findall(r'\("([a-z_]+)", (?:settings|own)\.', source))  # files that hold a secret
    assert asked == told
    assert f"{LEAST_FREE_BYTES / 1e9:.0f} GB" in PAGE
    assert f"{MOST_SKEW_SECONDS / 60:.0f} minutes" in PAGE
