"""A real gRPC server over a scripted engine, for tests of the service and of its callers."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from engine.loading.source import SamplingDefaults
from engine.request import RequestSpec
from service.chat_template import load_chat_template
from service.engine_client import EngineClient
from service.runtime import ModelAssets, ModelRuntime
from service.serving import Ports, Service
from tests.support.byte_tokenizer import byte_tokenizer
from tests.support.scripted_engine import Script, ScriptedEngineClient

MODEL_NAME = "scripted"


@dataclass(frozen=True, slots=True)
class RunningService:
    """address, admin_address: host:port of the data plane and of the admin plane."""

    address: str
    admin_address: str
    service: Service
    ports: Ports


def text_script(text: str) -> Script:
    """Every request generates `text`, then its end token."""
    ids = byte_tokenizer().encode(text, add_special_tokens=False, parse_special=False)

    def script(_spec: RequestSpec) -> Sequence[int]:
        return ids

    return script


def scripted_assets(
    sampling_defaults: SamplingDefaults | None = None, *, has_template: bool = True
) -> ModelAssets:
    """The byte tokenizer with its ChatML template."""
    tokenizer = byte_tokenizer()
    return ModelAssets(
        tokenizer=tokenizer,
        template=load_chat_template(tokenizer) if has_template else None,
        end_token_ids=tuple(sorted(tokenizer.end_ids)),
        sampling_defaults=sampling_defaults or SamplingDefaults(),
    )


@asynccontextmanager
async def started_service(
    engine: EngineClient | None = None,
    *,
    assets: ModelAssets | None = None,
    model_name: str = MODEL_NAME,
    stall_seconds: float = 60.0,
    metrics: bool = False,
    load: bool = True,
) -> AsyncIterator[RunningService]:
    """Serves on free ports; by default every request is answered with "Hello, world!"."""
    engine = engine or ScriptedEngineClient(text_script("Hello, world!"))
    known = assets or scripted_assets()
    service = Service(ModelRuntime(model_name, engine, lambda: known), stall_seconds=stall_seconds)
    ports = await service.listen(Ports(metrics=0 if metrics else None))
    try:
        if load:
            await service.load()
        host = ports.host
        yield RunningService(f"{host}:{ports.grpc}", f"{host}:{ports.admin}", service, ports)
    finally:
        await service.close()


@asynccontextmanager
async def running_service(
    engine: EngineClient | None = None,
    *,
    assets: ModelAssets | None = None,
    model_name: str = MODEL_NAME,
    stall_seconds: float = 60.0,
    load: bool = True,
) -> AsyncIterator[str]:
    """As `started_service`, for those who only need the data plane's host:port."""
    async with started_service(
        engine, assets=assets, model_name=model_name, stall_seconds=stall_seconds, load=load
    ) as running:
        yield running.address
