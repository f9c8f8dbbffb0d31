"""A gateway on a free port, over a service with a scripted engine or over a fake one."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace

import httpx
from openai import AsyncOpenAI

from gateway.app import build_app
from gateway.config import GatewayConfig
from gateway.server import GatewayServer, bind
from service.engine_client import EngineClient
from tenon import AsyncClient
from tests.support.service_fixture import MODEL_NAME, running_service, started_service

CHAT = {"model": MODEL_NAME, "messages": [{"role": "user", "content": "hi"}]}
TEXT = {"model": MODEL_NAME, "prompt": "hi"}


@dataclass(frozen=True)
class RunningGateway:
    """url: base of all paths. http: a plain client. openai: the official one, without retries."""

    url: str
    http: httpx.AsyncClient
    openai: AsyncOpenAI

    async def chat(self, **fields: object) -> httpx.Response:
        """POSTs a chat request: the smallest one with `fields`."""
        return await self.http.post("/v1/chat/completions", json={**CHAT, **fields})

    async def complete(self, **fields: object) -> httpx.Response:
        """POSTs a completion request."""
        return await self.http.post("/v1/completions", json={**TEXT, **fields})


@asynccontextmanager
async def gateway_before(
    service_target: str, config: GatewayConfig | None = None
) -> AsyncIterator[RunningGateway]:
    """A real uvicorn in this event loop, in front of the service at `service_target`."""
    config = replace(config or GatewayConfig(), port=0, service_target=service_target)
    listener = bind(config)
    server = EmbeddedServer(config, build_app(config, AsyncClient(service_target)), listener)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    listening = asyncio.ensure_future(server.is_listening.wait())
    await asyncio.wait((serving, listening), return_when=asyncio.FIRST_COMPLETED)
    if serving.done():
        await serving  # raises what kept it from listening
    url = f"http://127.0.0.1:{server.http_port}"
    openai = AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    try:
        async with httpx.AsyncClient(base_url=url, timeout=60) as http, openai:
            yield RunningGateway(url, http, openai)
    finally:
        server.should_exit = True
        await serving


@asynccontextmanager
async def running_gateway(
    engine: EngineClient | None = None, config: GatewayConfig | None = None
) -> AsyncIterator[RunningGateway]:
    """A gateway over a service with a scripted engine; says "Hello, world!" by default."""
    async with running_service(engine) as address, gateway_before(address, config) as gateway:
        yield gateway


@asynccontextmanager
async def running_gateway_loading(
    engine: EngineClient,
) -> AsyncIterator[tuple[RunningGateway, "asyncio.Task[None]"]]:
    """A gateway over a service whose engine loads, and the task that ends when it has loaded."""
    async with started_service(engine, load=False) as running:
        loading = asyncio.create_task(running.service.load())
        async with gateway_before(running.address) as gateway:
            yield gateway, loading
        await loading


class EmbeddedServer(GatewayServer):
    """Tells the test when it listens, and leaves signals to pytest."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self.is_listening = asyncio.Event()

    async def startup(self, sockets=None) -> None:
        await super().startup(sockets)
        self.is_listening.set()

    @contextmanager
    def capture_signals(self):
        yield


def sse_events(body: str) -> list[str]:
    """The data of each event; comments are dropped."""
    blocks = [block for block in body.split("\n\n") if block]
    return [block.removeprefix("data: ") for block in blocks if not block.startswith(":")]
