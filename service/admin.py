"""tenon.admin.v1.AdminService: what operators see and do, on a port of its own."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import structlog

from service.engine_client import EngineState
from service.errors import invalid
from service.generation import Generation
from service.registry import GenerationRegistry
from service.runtime import ModelRuntime
from service.validation import MAX_NAME_CHARS, check_length
from tenon.admin.v1 import admin_service_pb2 as pb
from tenon.admin.v1 import admin_service_pb2_grpc

MAX_ABORTED = 10_000
MAX_GRACE_SECONDS = 3600

Context = grpc.aio.ServicerContext[Any, Any]

STATES = {
    EngineState.LOADING: pb.ENGINE_STATE_LOADING,
    EngineState.READY: pb.ENGINE_STATE_READY,
    EngineState.RESTARTING: pb.ENGINE_STATE_RESTARTING,
    EngineState.FAILED: pb.ENGINE_STATE_FAILED,
    EngineState.CLOSED: pb.ENGINE_STATE_FAILED,
}

_log = structlog.get_logger("tenon.admin")


class AdminServicer(admin_service_pb2_grpc.AdminServiceServicer):
    """Serves the operator surface.

    drain: drains with a grace in seconds; runs on after Drain has answered.
    """

    def __init__(
        self,
        runtime: ModelRuntime,
        registry: GenerationRegistry,
        drain: Callable[[float], Awaitable[None]],
    ) -> None:
        self._runtime = runtime
        self._registry = registry
        self._drain = drain
        self._draining: asyncio.Task[None] | None = None

    async def GetStatus(
        self, request: pb.GetStatusRequest, context: Context
    ) -> pb.GetStatusResponse:
        """A snapshot; never waits for the engine."""
        status = self._runtime.status()
        response = pb.GetStatusResponse(
            state=pb.ENGINE_STATE_DRAINING if self._registry.is_draining else STATES[status.state],
            load_progress=status.progress,
            models=[self._runtime.name],
            running=status.load.running,
            waiting=status.load.waiting,
            kv_blocks_used=status.load.kv_blocks_used,
            kv_blocks_total=status.load.kv_blocks_total,
            restarts=status.restarts,
            requests=[self._request_status(item) for item in self._registry.generations],
        )
        response.time.GetCurrentTime()
        if status.step_age is not None:
            response.step_age.FromNanoseconds(round(status.step_age * 1e9))
        return response

    async def AbortRequests(
        self, request: pb.AbortRequestsRequest, context: Context
    ) -> pb.AbortRequestsResponse:
        """Fails requests with ABORTED; their callers see that an operator did it."""
        check_length("request_ids", request.request_ids, 1, MAX_ABORTED, "ids")
        check_length("reason", request.reason, 0, MAX_NAME_CHARS, "characters")
        aborted = self._registry.abort(request.request_ids, "the request was ended by an operator")
        _log.info("requests aborted", request_ids=aborted, reason=request.reason)
        return pb.AbortRequestsResponse(aborted_request_ids=aborted)

    async def Drain(self, request: pb.DrainRequest, context: Context) -> pb.DrainResponse:
        """Starts draining and answers at once."""
        grace = request.grace.seconds + request.grace.nanos / 1e9
        if not 0 <= grace <= MAX_GRACE_SECONDS:
            raise invalid("grace", f"must be in [0, {MAX_GRACE_SECONDS}] seconds, not {grace:g}")
        if self._draining is None:
            self._registry.is_draining = True
            self._draining = asyncio.ensure_future(self._drain(grace))
        return pb.DrainResponse(running=len(self._registry.generations))

    async def ResetPrefixCache(
        self, request: pb.ResetPrefixCacheRequest, context: Context
    ) -> pb.ResetPrefixCacheResponse:
        """Drops cached blocks that no request holds."""
        if not self._runtime.is_ready:
            raise self._runtime.not_ready()
        dropped = await self._runtime.engine.reset_prefix_cache()
        return pb.ResetPrefixCacheResponse(dropped_blocks=dropped)

    def _request_status(self, generation: Generation) -> pb.RequestStatus:
        status = pb.RequestStatus(
            request_id=generation.request_id,
            running=generation.has_started,
            prompt_tokens=generation.prompt_tokens,
            output_tokens=generation.output_tokens,
        )
        status.age.FromNanoseconds(round(self._registry.age(generation) * 1e9))
        return status
