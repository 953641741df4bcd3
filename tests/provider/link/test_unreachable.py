"""What keeps a link from coming about, as its owner reads it: real attempts, plain words."""

from __future__ import annotations

import errno
import socket

import pytest

from provider.link.dial import DialFailed, LinkSettings, dial
from provider.link.unreachable import unreachable_words

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
