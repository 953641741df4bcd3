"""Every HTTP answer's edge: request IDs, the error envelope on every path, `Host`, `Origin` and CORS.

docs/contract.md, "Envelope": 404, 405, 413 and the unforeseen answer in the same JSON as any other error.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Awaitable, Callable

import structlog
from aiohttp import web
from aiohttp.typedefs import Middleware

from gateway_protocol.completion import error_event
from gateway_protocol.errors import ApiError, ErrorCode
from gateway_protocol.limits import REQUEST_BODY_BYTES
from provider.local_gateway.access import Doorkeeper
from provider.local_gateway.dispatch import COOLDOWN_MAX
from provider.local_gateway.sse import to_json

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

REQUEST_ID: web.RequestKey[str] = web.RequestKey("request_id", str)
# However long a provider asks for: no rest is longer.
RETRY_AFTER_MAX = math.ceil(COOLDOWN_MAX) + 1
_METHODS = "GET, POST, OPTIONS"
_HEADERS = "authorization, content-type, x-request-id"

log = structlog.get_logger("gateway")


def new_request_id() -> str:
    return f"req_{secrets.token_hex(16)}"


def request_id(request: web.BaseRequest) -> str:
    """This request's ID, minted once."""
    if REQUEST_ID not in request:
        request[REQUEST_ID] = new_request_id()
    return request[REQUEST_ID]


def error_headers(error: ApiError) -> dict[str, str]:
    """What a client's retry logic reads: SDKs rerun every 5xx unless told not to."""
    headers: dict[str, str] = {}
    if error.http_status in (429, 503):
        seconds = math.ceil((error.retry_after_ms or 1000) / 1000)
        headers["Retry-After"] = str(min(max(1, seconds), RETRY_AFTER_MAX))
    if error.http_status >= 500 and not error.retryable:
        headers["x-should-retry"] = "false"
    if error.http_status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return headers


def error_response(request: web.BaseRequest, error: ApiError, *, receipt: str | None = None) -> web.Response:
    headers = {"x-request-id": request_id(request), **error_headers(error)}
    if receipt is not None:
        headers["x-malibu-receipt"] = receipt
    response = web.Response(
        status=error.http_status,
        body=to_json(error_event(error, request_id(request), receipt)).encode(),
        content_type="application/json",
        headers=headers,
    )
    if error.code is ErrorCode.REQUEST_BODY_TOO_LARGE:
        # The rest of the body is not read, so the connection can't carry another request.
        response.force_close()
    return response


def from_http(error: web.HTTPException, request: web.Request) -> ApiError:
    """aiohttp's own refusals, as this API's."""
    if isinstance(error, web.HTTPMethodNotAllowed):
        allowed = ", ".join(sorted(error.allowed_methods))
        return ApiError(
            ErrorCode.METHOD_NOT_ALLOWED, f"{request.method} isn't allowed here; allowed: {allowed}."
        )
    if isinstance(error, web.HTTPRequestEntityTooLarge):
        return body_too_large()
    if isinstance(error, web.HTTPNotFound):
        return ApiError(ErrorCode.UNKNOWN_URL, f"There is nothing at {request.method} {request.path}.")
    return ApiError(ErrorCode.INVALID_REQUEST, error.reason or "The request can't be served.")


def body_too_large() -> ApiError:
    return ApiError(ErrorCode.REQUEST_BODY_TOO_LARGE, f"The request body is over {REQUEST_BODY_BYTES} bytes.")


def unforeseen() -> ApiError:
    return ApiError(ErrorCode.PROVIDER_ERROR, "The gateway failed to serve this request.")


def envelope_middleware(doorkeeper: Doorkeeper) -> Middleware:
    """The outermost middleware of the application."""

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            if refusal := _refusal(request, doorkeeper):
                return _finish(request, error_response(request, refusal))
            if request.method == "OPTIONS":
                return _finish(request, web.Response(status=204))
            response = await handler(request)
        except ApiError as error:
            response = error_response(request, error)
        except web.HTTPException as error:
            response = error_response(request, from_http(error, request))
            if allowed := error.headers.get("Allow"):
                response.headers["Allow"] = allowed  # RFC 9110, 15.5.6
        except ConnectionError:
            raise
        except Exception:
            log.exception("request_failed", request_id=request_id(request))
            response = error_response(request, unforeseen())
        return response if response.prepared else _finish(request, response)

    return middleware


def _refusal(request: web.Request, doorkeeper: Doorkeeper) -> ApiError | None:
    host = request.headers.get("Host")
    if not doorkeeper.host_allowed(host):
        return ApiError(ErrorCode.FORBIDDEN, "This gateway isn't known by that Host.")
    origin = request.headers.get("Origin")
    if origin is not None and not doorkeeper.origin_allowed(origin, host):
        return ApiError(ErrorCode.FORBIDDEN, "Pages of that Origin may not call this gateway.")
    return None


def _finish(request: web.Request, response: web.StreamResponse) -> web.StreamResponse:
    common_headers(request, response)
    return response


def common_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Headers of every answer; a handler that prepares its own response calls this before."""
    response.headers["x-request-id"] = request_id(request)
    origin = request.headers.get("Origin")
    if origin is None:
        return
    response.headers["Vary"] = "Origin"
    if response.status == 403:
        return
    response.headers["Access-Control-Allow-Origin"] = origin
    response.headers["Access-Control-Expose-Headers"] = "x-request-id, x-malibu-receipt, retry-after"
    if request.method == "OPTIONS":
        response.headers["Access-Control-Allow-Methods"] = _METHODS
        response.headers["Access-Control-Allow-Headers"] = (
            request.headers.get("Access-Control-Request-Headers") or _HEADERS
        )
        response.headers["Access-Control-Max-Age"] = "600"
