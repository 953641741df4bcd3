"""The README is true: what it links to is there, what it tells one to type exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer

from cli.main import app

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


def commands() -> set[tuple[str, ...]]:
    """The words after the command's name: `models pull` of `malibu-provider models pull ID`."""
    flat = README.replace("\n", " ")
    return {tuple(words.split()) for words in re.findall(r"malibu-provider((?: [a-z][a-z-]+)+)", flat)}


@pytest.mark.parametrize("words", sorted(commands()))
def test_every_command_exists(words: tuple[str, ...]) -> None:
    command = typer.main.get_command(app)
    for word in words:
        below = getattr(command, "commands", None)
        if below is None:
            return
        assert word in below, words
        command = below[word]


def test_every_flag_exists() -> None:
    known = {"--once", "--full", "--install-completion", "--help"}

    def flags(command: object) -> set[str]:
        own = {name for each in getattr(command, "params", []) for name in each.opts}
        return own.union(*(flags(below) for below in getattr(command, "commands", {}).values()))

    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", README)) <= known | flags(typer.main.get_command(app))
