"""A chat through a gateway and a provider on real sockets, as openai-python sees it."""

from __future__ import annotations

import pytest

from provider.local_gateway.server import LocalGateway
from tests.fakes.fake_provider import MODEL, FakeProvider, answering
from tests.provider.local_gateway.conftest import openai_client


@pytest.mark.asyncio
async def test_stream(gateway: LocalGateway) -> None:
    async with (
        FakeProvider(gateway.link_url, behave=answering("Hel", "lo")),
        openai_client(gateway) as client,
    ):
        stream = await client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "Hi"}], stream=True
        )
        chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Hello"
