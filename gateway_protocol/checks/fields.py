"""Reading one member of a JSON object with its type and range, or refusing it by its path.

In all of these an absent member and `null` are the same: `None`. A boolean is never a number.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway_protocol.errors import ApiError, ErrorCode


def invalid_request(param: str, message: str) -> ApiError:
    """`invalid_request` at the field's path; the message begins with it."""
    return ApiError(ErrorCode.INVALID_REQUEST, f"'{param}' {message}.", param=param)


def unsupported_field(param: str, message: str) -> ApiError:
    """`unsupported_field`: well-formed, but it can't be honoured and is never dropped silently."""
    return ApiError(ErrorCode.UNSUPPORTED_FIELD, f"'{param}' {message}.", param=param)


def boolean(body: Mapping[str, Any], name: str, *, path: str | None = None) -> bool | None:
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise invalid_request(path or name, "must be true or false")
    return value


def integer(
    body: Mapping[str, Any], name: str, *, minimum: int | None = None, maximum: int | None = None
) -> int | None:
    value = body.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool):
        raise invalid_request(name, "must be an integer")
    if (minimum is not None and value < minimum) or (maximum is not None and value > maximum):
        raise invalid_request(name, f"must be {_range(minimum, maximum)}")
    return value


def number(
    body: Mapping[str, Any],
    name: str,
    *,
    minimum: float | None = None,
    maximum: float | None = None,
    above: float | None = None,
) -> float | None:
    """`above` is an exclusive lower bound."""
    value = body.get(name)
    if value is None:
        return None
    if not is_number(value):
        raise invalid_request(name, "must be a number")
    if above is not None and not above < value:
        raise invalid_request(name, f"must be above {above:g}")
    if not (minimum is None or minimum <= value) or not (maximum is None or value <= maximum):
        raise invalid_request(name, f"must be {_range(minimum, maximum)}")
    try:
        return float(value)
    except OverflowError:
        raise invalid_request(name, "is too large") from None


def string(body: Mapping[str, Any], name: str) -> str | None:
    value = body.get(name)
    if value is not None and not isinstance(value, str):
        raise invalid_request(name, "must be a string")
    return value


def json_object(body: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    value = body.get(name)
    if value is not None and not isinstance(value, dict):
        raise invalid_request(name, "must be an object")
    return value


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def utf8_size(text: str) -> int:
    """Bytes of `text` in UTF-8: what every cap counts."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def _range(minimum: float | None, maximum: float | None) -> str:
    if maximum is None:
        return f"{minimum} or more"
    return f"from {minimum} to {maximum}"
