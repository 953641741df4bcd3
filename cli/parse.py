"""`parse`: what would the daemon make of this model output? For understanding and reporting misreads."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from gateway_protocol.errors import ApiError
from provider.errors import UsageError
from provider.models.catalogue import catalogue
from provider.toolcalls.explain import CASE_MODELS, RawOutput, explain, run_case


def parse(
    *,
    file: str | None,
    model: str | None,
    tools: Path | None,
    parallel: bool,
    finish_reason: str,
    contract: str,
    stream: bool,
    chunk_chars: int | None,
    cases: Path | None,
) -> None:
    """Print the completion, the chunks, or a line for each case. Raises `UsageError`."""
    if chunk_chars is not None and chunk_chars < 1:
        raise UsageError("--chunk-chars: must be 1 or more")
    finish: Literal["stop", "length"] = _one_of("--finish-reason", finish_reason, ("stop", "length"))
    if cases is not None:
        if file is not None or model is not None or tools is not None:
            raise UsageError("--cases brings its own models, tools and texts; leave the rest out")
        _run_cases(cases, chunk_chars)
        return
    if file is None or model is None or not model.strip():
        raise UsageError("give --model ID and a FILE (or - for standard input), or --cases FILE")
    entry = catalogue().get(model)
    output = RawOutput(
        text=_read(file),
        model=model,
        tools=_tools(tools),
        finish=finish,
        parallel=True if parallel else None,
        contract=_one_of("--contract", contract, ("malibu", "strict")),
        chunk_chars=chunk_chars,
        family=entry.family if entry else None,
        think=entry.think if entry else None,
    )
    try:
        document = explain(output, stream=stream)
    except ApiError as error:
        raise UsageError(f"--tools: {error.param}: {error.message}") from None
    for part in document if isinstance(document, list) else [document]:
        print(json.dumps(part, ensure_ascii=False, indent=None if stream else 2))


def _one_of(flag: str, given: str, words: tuple[Any, ...]) -> Any:
    if given not in words:
        raise UsageError(f"{flag}: must be {' or '.join(words)}, not {given!r}")
    return given


def _read(file: str) -> str:
    try:
        data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
        return data.decode("utf-8")
    except OSError as error:
        raise UsageError(f"can't read {file}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{file} is not UTF-8 (byte {error.start})") from None


def _tools(file: Path | None) -> list[Any]:
    """The file holds the request's `tools`, or a whole request."""
    if file is None:
        return []
    document = _json(f"--tools: {file} is not JSON", _read(str(file)))
    if isinstance(document, Mapping):
        document = document.get("tools")
    if not isinstance(document, list):
        raise UsageError(f"--tools: {file} holds no list of tools")
    return document


def _run_cases(file: Path, chunk_chars: int | None) -> None:
    for number, line in enumerate(_read(str(file)).split("\n"), 1):
        if not line.strip():
            continue
        case = _json(f"{file}:{number}: not JSON", line)
        if problem := _no_case(case):
            raise UsageError(f"{file}:{number}: not a case: {problem}")
        print(json.dumps(run_case(case, chunk_chars), ensure_ascii=False))


def _json(fault: str, text: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        raise UsageError(f"{fault}: nested too deep") from None
    except ValueError as error:
        raise UsageError(f"{fault}: {error}") from None


def _no_case(case: Any) -> str | None:
    """What keeps a line from being one."""
    if not isinstance(case, Mapping):
        return "no JSON object"
    wanted = {"id": str, "family": str, "text": str, "tools": list}
    wrong = [name for name, kind in wanted.items() if not isinstance(case.get(name), kind)]
    if wrong:
        return f"{wrong[0]} must be a {'list' if wrong[0] == 'tools' else 'text'}"
    if case["family"] not in CASE_MODELS:
        return f"family must be one of {', '.join(CASE_MODELS)}"
    if case.get("finish", "stop") not in ("stop", "length"):
        return "finish must be stop or length"
    return None if isinstance(case.get("parallel"), bool | None) else "parallel must be true or false"
