"""`config show` and `config path`."""

from __future__ import annotations

import json
from pathlib import Path

from cli.setup import config_file as locate
from cli.setup import load_config


def show_config(*, with_origin: bool, as_json: bool, config_file: Path | None) -> None:
    loaded = load_config(config_file)
    values = loaded.values()
    origins = {key: loaded.origins.get(key, "default") for key in values}
    if as_json:
        document = (
            {key: {"value": value, "origin": origins[key]} for key, value in values.items()}
            if with_origin
            else values
        )
        print(json.dumps(document, indent=2, ensure_ascii=False))
        return
    for key, value in values.items():
        line = f"{key} = {'(not set)' if value is None else json.dumps(value, ensure_ascii=False)}"
        print(f"{line:<60} # {origins[key]}" if with_origin else line)


def show_path(*, config_file: Path | None) -> None:
    print(locate(config_file)[0])
