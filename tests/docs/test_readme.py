"""The README is true: what it links to is there, what it tells one to type exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.typed import all_flags, check_command, commands

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_every_link_into_the_repository_leads_somewhere() -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)\)", README)
    assert links
    for link in links:
        assert (ROOT / link).exists(), link


def test_every_script_is_there_and_may_be_run() -> None:
    for name in set(re.findall(r"scripts/[a-z_.]+[a-z]", README)):
        assert (ROOT / name).stat().st_mode & 0o111, name


@pytest.mark.parametrize("words", sorted(commands(README)), ids=" ".join)
def test_every_command_exists(words: tuple[str, ...]) -> None:
    check_command(words)


def test_every_flag_exists() -> None:
    known = {"--once", "--full", "--install-completion", "--help"}
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", README)) <= known | all_flags()
