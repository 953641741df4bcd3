"""Flags that many commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ConfigOption = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="Configuration file (TOML).")
]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON document on stdout and nothing else.")]


def group(help_text: str, *, example: str) -> typer.Typer:
    """A command with subcommands; alone it shows its help. `example`: what comes after `malibu-provider`."""
    return typer.Typer(
        help=help_text,
        epilog=f"Example: malibu-provider {example}",
        no_args_is_help=True,
        rich_markup_mode=None,
    )
