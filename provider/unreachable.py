"""Why no connection came about, in words for the owner of the machine. Pure."""

from __future__ import annotations

import errno
import re
import socket
import ssl
from typing import Final

_WORDS: Final = (
    (errno.ECONNREFUSED, "nothing listens there (connection refused)"),
    (errno.ENETUNREACH, "there is no way to it from this network"),
    (errno.EHOSTUNREACH, "there is no way to it from this network"),
    (errno.ENETDOWN, "this machine's network is down"),
    (errno.ECONNRESET, "it closed the connection at once"),
    (errno.EPIPE, "it closed the connection at once"),
    (errno.ETIMEDOUT, "it doesn't answer"),
)
_NUMBER: Final = re.compile(r"\[Errno (\d+)\]")


def unreachable_words(error: BaseException) -> str:
    """Without addresses, numbers and names of classes, wherever it can be told what happened."""
    match error:
        case socket.gaierror():
            return "its name can't be resolved: check the address, or this machine's network"
        case ssl.SSLCertVerificationError():
            return f"its certificate is not accepted: {error.verify_message}"
        case ssl.SSLError():
            return f"no TLS connection: {(error.reason or 'it failed').replace('_', ' ').lower()}"
        case TimeoutError() if error.errno is None:
            return "it doesn't answer"
        case EOFError():
            return "it closed the connection at once"
        case UnicodeError():
            return "its name is no host's name"
        case OSError():
            # Where a name has several addresses, asyncio tells of all of them in one text without a number.
            numbers = {error.errno, *map(int, _NUMBER.findall(str(error)))}
            known = next((words for number, words in _WORDS if number in numbers), None)
            return known or error.strerror or type(error).__name__
    return "it doesn't answer as a web server does"
