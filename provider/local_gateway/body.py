"""A request's body, bounded in size and time, and where JSON that is large enough to be felt is worked on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, ParamSpec, TypeVar

from aiohttp import HttpVersion11, web

from gateway_protocol.errors import ApiError, ErrorCode
from gateway_protocol.limits import KIB, REQUEST_BODY_BYTES
from provider.local_gateway.envelope import body_too_large

# From here on parsing and hashing take long enough (about 2 ms) to be felt by running streams.
_LARGE: Final = 128 * KIB

P = ParamSpec("P")
T = TypeVar("T")


async def read_body(request: web.Request, seconds: float) -> bytes:
    """The whole body.

    Raises `request_body_too_large` without reading on, or `invalid_request` for a slow one.
    """
    if (request.content_length or 0) > REQUEST_BODY_BYTES:
        raise body_too_large()
    if _waits_to_be_asked(request):
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0  # the answer has not begun yet
    pieces: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(seconds):
            async for piece in request.content.iter_any():
                size += len(piece)
                if size > REQUEST_BODY_BYTES:
                    raise body_too_large()
                pieces.append(piece)
    except TimeoutError:
        raise ApiError(
            ErrorCode.INVALID_REQUEST, f"The body did not arrive within {seconds:g} seconds."
        ) from None
    except web.RequestPayloadError:
        raise ApiError(ErrorCode.INVALID_REQUEST, "The body is not what its headers say.") from None
    return b"".join(pieces)


async def expectation(request: web.Request) -> None:
    """For routes that read a body: they ask for it themselves, once it is known to be wanted.

    aiohttp would ask at once, also for a body that is too large or from someone without a key.
    """
    if request.version >= HttpVersion11 and not _waits_to_be_asked(request):
        raise web.HTTPExpectationFailed


def _waits_to_be_asked(request: web.Request) -> bool:
    """RFC 9110, 10.1.1; of an older client the header means nothing."""
    return request.version >= HttpVersion11 and request.headers.get("Expect", "").lower() == "100-continue"


# One such body at a time: working on it takes up to half of the interpreter's time from all streams.
_worker = ThreadPoolExecutor(1, thread_name_prefix="gateway-body")


async def work(size: int, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """`function(...)` here, or in a thread when it works on a body of `size` bytes that others would feel."""
    if size < _LARGE:
        return function(*args, **kwargs)
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(_worker, partial(function, *args, **kwargs))
