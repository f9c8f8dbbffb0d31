"""The generations that run in this process, by request id, and whether new ones are taken."""

import asyncio
from collections.abc import Callable, Iterable

from service.errors import ServiceError
from service.generation import Generation


class GenerationRegistry:
    """Owned by the event loop. Holds a generation from its admission until it is released."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._running: dict[str, Generation] = {}
        self._is_empty = asyncio.Event()
        self._is_empty.set()
        self.is_draining = False

    def add(self, generation: Generation) -> None:
        """Admits a generation. Raises ServiceError if draining or if its id is running."""
        self.refuse_when_draining()
        if generation.request_id in self._running:
            raise ServiceError(
                "DUPLICATE_REQUEST_ID",
                f"a request with the id {generation.request_id!r} is running",
                field="request_id",
                metadata={"request_id": generation.request_id},
            )
        self._running[generation.request_id] = generation
        self._is_empty.clear()

    def release(self, generation: Generation) -> None:
        """Forgets a generation that has ended."""
        if self._running.get(generation.request_id) is generation:
            del self._running[generation.request_id]
        if not self._running:
            self._is_empty.set()

    def find(self, request_id: str) -> Generation:
        """A running generation. Raises ServiceError REQUEST_NOT_FOUND."""
        if request_id not in self._running:
            raise ServiceError(
                "REQUEST_NOT_FOUND",
                f"no request with the id {request_id!r} is running",
                field="request_id",
                metadata={"request_id": request_id},
            )
        return self._running[request_id]

    @property
    def generations(self) -> list[Generation]:
        """All of them, those that have started first, then by age."""
        return sorted(self._running.values(), key=lambda item: (not item.has_started, item.arrival))

    def age(self, generation: Generation) -> float:
        """Seconds since a generation arrived."""
        return self._clock() - generation.arrival

    def abort(self, request_ids: Iterable[str], message: str) -> list[str]:
        """Fails generations with ABORTED_BY_OPERATOR; returns the ids that were running."""
        aborted = [id_ for id_ in dict.fromkeys(request_ids) if id_ in self._running]
        for id_ in aborted:
            self._running[id_].fail(ServiceError("ABORTED_BY_OPERATOR", message))
        return aborted

    def refuse_when_draining(self) -> None:
        """Raises ServiceError DRAINING once draining has begun."""
        if self.is_draining:
            raise ServiceError("DRAINING", "the server is shutting down and takes no new requests")

    async def drain(self, grace: float) -> int:
        """Takes no more generations and waits for the running ones, at most `grace` seconds.

        Those still running then fail with DRAINING and what they have delivered. Returns how many.
        """
        self.is_draining = True
        try:
            async with asyncio.timeout(grace):
                await self._is_empty.wait()
        except TimeoutError:
            pass
        remaining = self.generations
        for generation in remaining:
            message = "the server shut down before the request was finished"
            generation.fail(ServiceError("DRAINING", message))
        return len(remaining)

    async def wait_until_empty(self) -> None:
        """Returns once all generations are released."""
        await self._is_empty.wait()
