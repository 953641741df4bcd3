"""What is wrong with a configuration, in one line for each key."""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from pydantic_core import ErrorDetails

from provider.config.sections import known_keys

_KINDS = {
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "string_type": "must be text in quotes",
    "tuple_type": "must be a list",
    "path_type": "must be a path in quotes",
    "model_type": "must be a section of keys",
    "mapping_type": "must be a section of keys",
}


def _nearest(key: str) -> str | None:
    """The key that was probably meant: the same name in another section, else one spelled much alike."""
    known = known_keys()
    name = key.rpartition(".")[2]
    same_name = [candidate for candidate in known if candidate.rpartition(".")[2] == name]
    sections = {candidate.partition(".")[0] for candidate in known}
    return next(iter([*same_name, *difflib.get_close_matches(key, [*known, *sections], n=1)]), None)


def describe(fault: ErrorDetails, origins: Mapping[str, str]) -> str:
    """One line: key, what is wrong, where it was set."""
    key = ".".join(str(part) for part in fault["loc"])
    context = fault.get("ctx", {})
    given = fault["input"]
    if fault["type"] == "extra_forbidden":
        near = _nearest(key)
        text = f"unknown key (did you mean {near}?)" if near else "unknown key"
    elif fault["type"] == "value_error":
        # Our own validators write "key|text" where the fault belongs to a key below the one they check.
        below, bar, rest = str(context["error"]).partition("|")
        key, text = (f"{key}.{below}" if key else below, rest) if bar else (key, f"{below}, not {given!r}")
    elif fault["type"] == "literal_error":
        text = f"must be {context['expected']}, not {given!r}"
    elif fault["type"] in ("greater_than_equal", "greater_than", "less_than_equal", "less_than"):
        text = f"{fault['msg'].replace('Input should be', 'must be')}, not {given!r}"
    else:
        text = f"{_KINDS.get(fault['type'], fault['msg'])}, not {given!r}"
    origin = origins.get(key) or next((o for k, o in origins.items() if k.startswith(f"{key}.")), None)
    return f"{key}: {text}" + (f" (from {origin})" if origin else "")
