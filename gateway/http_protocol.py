"""uvicorn's HTTP protocol with what it lacks: a bound and a deadline on the head of a request."""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gateway.errors import ApiError

MAX_UNPARSED_BYTES = 128 * 1024
HEAD_TIMEOUT_S = 30.0


class BoundedHttpProtocol(HttpToolsProtocol):
    """One connection whose memory and waiting do not depend on the client's good will.

    The parser keeps an unfinished head (and an unfinished trailer) in memory for as long as more of
    it arrives. Here a run of MAX_UNPARSED_BYTES that completes no head and brings no body ends the
    connection with 431, and so does, without an answer, a head that takes longer than
    HEAD_TIMEOUT_S.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._unparsed_bytes = 0
        self._head_deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_head()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._unparsed_bytes += len(data)
        super().data_received(data)
        if self._unparsed_bytes > MAX_UNPARSED_BYTES and not self.transport.is_closing():
            self._refuse_head()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._expect_head()

    def on_headers_complete(self) -> None:
        self._unparsed_bytes = 0
        self._end_head()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._unparsed_bytes = 0
        super().on_body(body)

    def _unsupported_upgrade_warning(self) -> None:
        """An offer to upgrade may be ignored; uvicorn's log would advise to install a package."""

    def send_400_response(self, msg: str) -> None:
        """The answer to what is no HTTP, in the shape of every other error."""
        self._refuse(ApiError(400, "The request is not valid HTTP/1.1.", code="invalid_http"))

    def _expect_head(self) -> None:
        if self._head_deadline is None:
            self._head_deadline = self.loop.call_later(HEAD_TIMEOUT_S, self._head_is_late)

    def _end_head(self) -> None:
        if self._head_deadline is not None:
            self._head_deadline.cancel()
            self._head_deadline = None

    def _head_is_late(self) -> None:
        self._head_deadline = None
        if self._is_answering():
            # Half a pipelined request must not cut off the answer to the one before it.
            self._expect_head()
        else:
            self.transport.close()

    def _refuse_head(self) -> None:
        message = "The request headers are too large."
        self._refuse(ApiError(431, message, code="request_headers_too_large"))

    def _refuse(self, error: ApiError) -> None:
        """Answers, unless that would land inside another answer, and closes the connection."""
        if not self._is_answering():
            body = error.body()
            self.transport.write(
                b"HTTP/1.1 %d %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\n"
                b"connection: close\r\n\r\n%s"
                % (error.status, _REASONS[error.status], len(body), body)
            )
        self.transport.close()

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete


_REASONS = {400: b"Bad Request", 431: b"Request Header Fields Too Large"}
