"""When a waiting request tells its caller about its place: after a second, then once a second."""

from engine.request import RequestOutput
from service import events
from service.events import Event

QUIET_SECONDS = 1.0


class QueueReporter:
    """Turns positions in the queue into Queued events. Times are of the generation's clock."""

    def __init__(self, arrival: float) -> None:
        self._not_before = arrival + QUIET_SECONDS
        self._position: int | None = None
        self._reported: int | None = None
        self._estimated_wait: float | None = None

    def note(self, output: RequestOutput) -> None:
        """Takes the position that the engine reports, if it does. Of several outputs the last."""
        if output.queue_position is not None:
            self._position = output.queue_position
            self._estimated_wait = output.estimated_wait

    @property
    def due_at(self) -> float | None:
        """When the next report is due; None while there is nothing new to say."""
        return None if self._position == self._reported else self._not_before

    def report(self, now: float) -> Event | None:
        """The report, if it is due."""
        if self._position is None or self._position == self._reported or now < self._not_before:
            return None
        self._reported = self._position
        self._not_before = now + QUIET_SECONDS
        # The engine counts places from 1, the event counts the requests ahead.
        return events.queued(self._position - 1, self._estimated_wait)
