"""What keeps a link from coming about, as its owner reads it: real attempts, plain words."""

from __future__ import annotations

import asyncio
import errno
import socket

import pytest

from provider.link.dial import DialFailed, LinkSettings, dial
from provider.unreachable import unreachable_words

PLAIN = ("Errno", "Connect call", "Multiple", "'", "(0", "Error")


async def words_of(url: str) -> str:
    with pytest.raises(DialFailed) as failed:
        await dial(LinkSettings(url, token="secret", allow_insecure=True))
    return failed.value.end.detail


@pytest.mark.asyncio
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_nobody_listens_at_any_of_its_addresses(host: str) -> None:
    with socket.socket() as held:
        # Bound and not listening: whoever comes is refused, and nobody else gets the port.
        held.bind(("127.0.0.1", 0))
        said = await words_of(f"ws://{host}:{held.getsockname()[1]}/v1/provider")
    assert "nothing listens there" in said
    assert not any(part in said for part in PLAIN)


@pytest.mark.asyncio
@pytest.mark.parametrize("host", ["a..b", "x" * 64 + ".example"])
async def test_a_name_that_no_host_can_have_ends_the_attempt_not_the_daemon(host: str) -> None:
    said = await words_of(f"wss://{host}/v1/provider")
    assert "no host's name" in said


@pytest.mark.asyncio
@pytest.mark.parametrize("proxy", ["socks5://user:hidden@127.0.0.1:9", "gopher://user:hidden@127.0.0.1:9"])
async def test_a_proxy_that_cannot_be_used_ends_the_attempt_not_the_daemon(
    proxy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system's settings, which a Mac's owner may have made for another program."""
    for name in ("wss_proxy", "socks_proxy", "http_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setenv("https_proxy", proxy)
    said = await words_of("wss://gateway.invalid/v1/provider")
    assert "proxy" in said
    assert "NO_PROXY" in said
    assert "hidden" not in said


@pytest.mark.asyncio
async def test_one_that_is_no_gateway_is_told_in_words() -> None:
    async def babble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail.example ESMTP\r\n")
        writer.close()

    server = await asyncio.start_server(babble, "127.0.0.1", 0)
    async with server:
        said = await words_of(f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1/provider")
    assert said == "it doesn't answer as a gateway does"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.ENETUNREACH, "Network is unreachable"), "no way to it"),
        (OSError(f"Multiple exceptions: [Errno {errno.EHOSTUNREACH}] Connect call"), "no way to it"),
        (ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"), "closed the connection"),
        (EOFError(), "closed the connection"),
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), "can't be resolved"),
        (UnicodeError("label empty or too long"), "no host's name"),
        (TimeoutError(), "doesn't answer"),
        (TimeoutError(errno.ETIMEDOUT, "Connection timed out"), "doesn't answer"),
        (OSError(errno.ENOBUFS, "No buffer space available"), "No buffer space available"),
    ],
    ids=str,
)
def test_each_failure_has_its_words(error: BaseException, words: str) -> None:
    assert words in unreachable_words(error)
