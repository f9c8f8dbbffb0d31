"""Open requests of an engine client and who listens to each. Belongs to the event loop."""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from engine.request import FinishReason, RequestError, RequestOutput
from service.engine_client import OutputListener

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Mailbox:
    """Of all requests of one submit."""

    listener: OutputListener
    # Number of the command that submitted the request, counted from 1.
    command: int


class Mailboxes:
    """Fans a step's outputs out; the listener of a submit is called at most once per step."""

    def __init__(self) -> None:
        self._open: dict[str, _Mailbox] = {}

    def __len__(self) -> int:
        return len(self._open)

    def open(self, request_ids: Iterable[str], listener: OutputListener, command: int) -> None:
        """Outputs of these requests reach `listener` from now on."""
        self._open |= dict.fromkeys(request_ids, _Mailbox(listener, command))

    def known(self, request_ids: Iterable[str]) -> tuple[str, ...]:
        """Those that are open."""
        return tuple(request_id for request_id in request_ids if request_id in self._open)

    def drop(self, request_ids: Iterable[str]) -> tuple[str, ...]:
        """Delivers nothing more to these; returns those that were open."""
        return tuple(
            request_id for request_id in request_ids if self._open.pop(request_id, None) is not None
        )

    def deliver(self, outputs: Sequence[RequestOutput], num_applied: int) -> tuple[str, ...]:
        """Hands outputs out. Returns open requests of listeners that raised: they are dropped."""
        batches: dict[int, tuple[_Mailbox, list[RequestOutput]]] = {}
        for output in outputs:
            mailbox = self._open.get(output.request_id)
            if mailbox is None or mailbox.command > num_applied:
                continue
            batches.setdefault(id(mailbox), (mailbox, []))[1].append(output)
            if output.finish_reason is not None:
                del self._open[output.request_id]
        broken = [key for key, (box, batch) in batches.items() if not _call(box.listener, batch)]
        return self.drop([name for name, box in self._open.items() if id(box) in broken])

    def end_all(self, error: RequestError) -> None:
        """Ends every open request with `error`."""
        outputs = [
            RequestOutput(request_id, finish_reason=FinishReason.ERROR, error=error)
            for request_id in self._open
        ]
        newest = max((box.command for box in self._open.values()), default=0)
        self.deliver(outputs, newest)


def _call(listener: OutputListener, batch: Sequence[RequestOutput]) -> bool:
    try:
        listener(batch)
    except Exception:
        # Our bug, but one broken listener must not keep the step from the other requests.
        logger.exception("an output listener failed; its requests are dropped")
        return False
    return True
