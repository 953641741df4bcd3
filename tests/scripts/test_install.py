"""The Mac installer, with stand-ins for what a Mac has: it checks first, touches nothing when it refuses."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


class Mac:
    """Executables that answer as a Mac's would and note what they were asked."""

    def __init__(self, folder: Path) -> None:
        self.bin = folder / "bin"
        self.bin.mkdir()
        self.asked = folder / "asked"
        self.asked.touch()
        self.answers = {
            "uname": "case $1 in -s) echo Darwin;; -m) echo arm64;; esac",
            "sw_vers": "echo 15.2",
            "df": "echo Filesystem; echo /dev/disk3s1 100 50 90000000 1% /",
            "uv": f'[ "$2" = dir ] && echo {self.bin}; true',
            "malibu-provider": "true",
        }

    def install(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        for name, body in self.answers.items():
            file = self.bin / name
            file.write_text(f'#!/bin/sh\necho "{name} $*" >> {self.asked}\n{body}\n')
            file.chmod(0o755)
        return subprocess.run(
            ["sh", ROOT / "scripts" / "install.sh", *arguments],
            env={**os.environ, "PATH": f"{self.bin}:/usr/bin:/bin"},
            capture_output=True,
            text=True,
            check=False,
        )

    def commands(self) -> list[str]:
        lines = self.asked.read_text().splitlines()
        return [line for line in lines if line.startswith(("uv tool install", "malibu-provider"))]


@pytest.fixture
def mac(tmp_path: Path) -> Mac:
    return Mac(tmp_path)


def test_a_mac_gets_command_service_and_key(mac: Mac) -> None:
    done = mac.install()
    assert done.returncode == 0, done.stderr
    assert mac.commands() == [
        "uv tool install --quiet --force --python >=3.11 --constraints constraints.txt .",
        "malibu-provider --version",
        "malibu-provider service install",
        "malibu-provider keys show",
    ]


def test_the_service_can_be_left_out(mac: Mac) -> None:
    assert mac.install("--no-service").returncode == 0
    assert "malibu-provider service install" not in mac.commands()


@pytest.mark.parametrize(
    ("name", "answer", "words"),
    [
        ("uname", "echo Linux", "this installs on macOS"),
        ("uname", "case $1 in -s) echo Darwin;; -m) echo x86_64;; esac", "Apple silicon"),
        ("sw_vers", "echo 13.6", "macOS 14 or newer is needed; this is 13.6"),
        ("df", "echo Filesystem; echo /dev/disk3s1 100 50 1000000 1% /", "4 GB of free disk are needed"),
    ],
)
def test_a_machine_that_will_not_do_is_told_before_anything_is_touched(
    mac: Mac, name: str, answer: str, words: str
) -> None:
    mac.answers[name] = answer
    done = mac.install()
    assert done.returncode == 1
    assert words in done.stderr
    assert mac.commands() == []


def test_without_uv_it_says_how_to_get_it(mac: Mac) -> None:
    del mac.answers["uv"]
    done = mac.install()
    assert done.returncode == 1
    assert "brew install uv" in done.stderr


def test_an_unknown_option_is_refused(mac: Mac) -> None:
    assert mac.install("--yes").returncode == 1
    assert mac.commands() == []
