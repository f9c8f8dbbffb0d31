"""Reads a request body within its limits and decodes it as strict JSON.

Policy: UTF-8 without a byte order mark, no NaN or Infinity, no lone surrogates, no
numbers beyond a double, nesting of at most 64; of duplicate keys the last wins, for every reader
alike, because the body is decoded once.
"""

import asyncio
import re
from collections.abc import Iterable
from typing import Any

import msgspec
from starlette.types import Receive, Scope

from gateway import errors

MAX_DEPTH = 64
BODY_TIMEOUT_S = 30.0
_BYTE = re.compile(r" ?\(byte (\d+)\)")


class ClientGone(Exception):
    """The client closed the connection; nobody is left to answer."""


def request_header(scope: Scope, name: bytes) -> str:
    """One request header, "" if absent."""
    for key, value in scope["headers"]:
        if key == name:
            return bytes(value).decode("latin-1")
    return ""


async def read_json_object(scope: Scope, receive: Receive, max_bytes: int) -> dict[str, Any]:
    """The request body as a JSON object. Raises ApiError, or ClientGone."""
    _check_content_headers(scope, max_bytes)
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            body = await _read(receive, max_bytes)
    except TimeoutError:
        raise errors.body_timeout(BODY_TIMEOUT_S) from None
    return decode_object(body)


def decode_object(body: bytes) -> dict[str, Any]:
    """A JSON text that must be an object. Raises ApiError."""
    try:
        value = msgspec.json.decode(body)
    except RecursionError:
        raise errors.invalid_json(f"it is nested deeper than {MAX_DEPTH}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise errors.invalid_json(_explain(str(error), body)) from None
    if body.count(b"[") + body.count(b"{") > MAX_DEPTH:
        _check_depth(value)
    if not isinstance(value, dict):
        raise errors.invalid_json(f"expected a JSON object, got {errors.json_type(value)}")
    return value


def _check_content_headers(scope: Scope, max_bytes: int) -> None:
    # Only JSON: a browser page can send any other type across origins without asking first.
    media_type = request_header(scope, b"content-type").split(";")[0].strip().lower()
    if media_type != "application/json":
        got = f"'{media_type[:128]}'" if media_type else "none"
        raise errors.unsupported_media_type(
            f"Unsupported content type {got}: send 'Content-Type: application/json'."
        )
    encoding = request_header(scope, b"content-encoding").strip().lower()
    if encoding not in ("", "identity"):
        raise errors.unsupported_media_type("Compressed request bodies are not supported.")
    length = request_header(scope, b"content-length")
    if length.isdecimal() and int(length[:20]) > max_bytes:
        raise errors.request_too_large(max_bytes)


async def _read(receive: Receive, max_bytes: int) -> bytes:
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        chunks.append(message.get("body", b""))
        size += len(chunks[-1])
        if size > max_bytes:
            raise errors.request_too_large(max_bytes)
        if not message.get("more_body", False):
            return b"".join(chunks)


def _check_depth(value: object) -> None:
    level = _containers([value])
    for _ in range(MAX_DEPTH):
        if not level:
            return
        level = [
            child
            for container in level
            for child in _containers(
                container.values() if isinstance(container, dict) else container
            )
        ]
    raise errors.invalid_json(f"it is nested deeper than {MAX_DEPTH}")


def _containers(values: Iterable[Any]) -> list[dict[str, Any] | list[Any]]:
    return [value for value in values if isinstance(value, dict | list)]


def _explain(reason: str, body: bytes) -> str:
    """The decoder's reason with line and column instead of a byte offset."""
    if not body.strip():
        return "the body is empty"
    if body.startswith(b"\xef\xbb\xbf"):
        return "it begins with a byte order mark"
    found = _BYTE.search(reason)
    reason = _BYTE.sub("", reason).split(" - at ")[0]
    if found is None:
        return reason
    before = body[: int(found[1])]
    line = before.count(b"\n") + 1
    column = len(before) - before.rfind(b"\n")
    return f"{reason} (line {line}, column {column})"
