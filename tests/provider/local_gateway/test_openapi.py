"""The OpenAPI document: whole, true, and held against the gateway by schemathesis."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from jsonschema_rs import validator_for

from provider.local_gateway.server import LocalGateway
from tests.fakes.fake_provider import FakeProvider, answering
from tests.provider.local_gateway.conftest import chat, stream

SCHEMATHESIS = "schemathesis==4.32.5"
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "unsupported_method",
)


async def document(http: aiohttp.ClientSession, gateway: LocalGateway) -> dict[str, Any]:
    async with http.get(f"{gateway.url}/openapi.json") as response:
        found: dict[str, Any] = await response.json()
        return found


@pytest.mark.asyncio
async def test_every_route_is_described(gateway: LocalGateway, http: aiohttp.ClientSession) -> None:
    described = set((await document(http, gateway))["paths"])
    served = {resource.canonical for resource in gateway.routes()}
    unescaped = {path.replace("{model:.+}", "{id}").replace("{model}", "{id}") for path in served}
    assert described == unescaped - {"/v1/provider"}  # the providers' link isn't for buyers


@pytest.mark.asyncio
async def test_answers_are_as_described(gateway: LocalGateway, http: aiohttp.ClientSession) -> None:
    described = await document(http, gateway)

    def valid(name: str, value: Any) -> None:
        schema = {"$ref": f"#/components/schemas/{name}", "components": described["components"]}
        validator_for(schema).validate(value)

    async with FakeProvider(gateway.link_url):
        got = await stream(http, gateway, stream_options={"include_usage": True})
        for event in got.events:
            valid("ChatCompletionChunk", event)
        async with http.post(f"{gateway.url}/v1/chat/completions", json=chat()) as response:
            valid("ChatCompletion", await response.json())
        async with http.get(f"{gateway.url}/v1/status") as response:
            valid("Status", await response.json())
        async with http.get(f"{gateway.url}/nowhere") as response:
            valid("Error", await response.json())


def schemathesis() -> Path:
    """The tool, in an environment that is made once: it may not meet this product's own dependencies."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    folder = cache / "malibu-provider-tests" / SCHEMATHESIS
    tool = folder / "bin" / "st"
    if not tool.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        subprocess.run([str(folder / "bin" / "pip"), "install", "--quiet", SCHEMATHESIS], check=True)
    return tool


@pytest.mark.slow
@pytest.mark.asyncio
@pytest.mark.timeout(400)
async def test_no_5xx_and_no_answer_outside_the_schema(gateway: LocalGateway, tmp_path: Path) -> None:
    tool = await asyncio.to_thread(schemathesis)
    # An answer within every `max_tokens` there is: one with more would rightly be refused.
    async with FakeProvider(gateway.link_url, slots=64, behave=answering("Hello")):
        process = await asyncio.create_subprocess_exec(
            str(tool),
            "run",
            f"{gateway.url}/openapi.json",
            *("--checks", ",".join(CHECKS)),
            *("--max-examples", "50", "--seed", "7"),
            cwd=tmp_path,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        report, _ = await process.communicate()
    assert process.returncode == 0, report.decode()[-4000:]
