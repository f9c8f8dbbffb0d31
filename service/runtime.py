"""One served model: its tokenizer, template, sampling defaults and engine, and whether it is ready.

The only place that knows how far loading is.
"""

import asyncio
import hashlib
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from engine.config import EngineInfo
from engine.loading.source import SamplingDefaults
from service.chat_template import ChatTemplate
from service.engine_client import EngineClient, EngineState, EngineStatus
from service.errors import ServiceError
from service.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class ModelAssets:
    """What the service itself reads from a checkpoint."""

    tokenizer: Tokenizer
    template: ChatTemplate | None
    end_token_ids: tuple[int, ...]
    sampling_defaults: SamplingDefaults = field(default_factory=SamplingDefaults)


class ModelRuntime:
    """A model under a name. Belongs to one event loop.

    load_assets: reads the assets; called in a thread, may take seconds.
    """

    def __init__(
        self, name: str, engine: EngineClient, load_assets: Callable[[], ModelAssets]
    ) -> None:
        self.name = name
        self.engine = engine
        self.load_time = 0.0  # seconds since the epoch
        self._load_assets = load_assets
        self._assets: ModelAssets | None = None
        self._secret = secrets.token_bytes(16)

    async def start(self) -> None:
        """Loads assets, then the engine. Raises what loading raised."""
        # The assets come first: they take a second, and a damaged tokenizer is then told at once.
        self._assets = await asyncio.to_thread(self._load_assets)
        await self.engine.start()
        self.load_time = time.time()

    @property
    def is_ready(self) -> bool:
        """Whether requests are served."""
        return self._assets is not None and self.engine.status().state is EngineState.READY

    @property
    def assets(self) -> ModelAssets:
        """Tokenizer and so on. Raises ServiceError before they are loaded."""
        if self._assets is None:
            raise self.not_ready()
        return self._assets

    @property
    def info(self) -> EngineInfo:
        """Facts of the engine. Raises ServiceError unless the model is ready."""
        if not self.is_ready:
            raise self.not_ready()
        return self.engine.info

    def status(self) -> EngineStatus:
        """The engine's status."""
        return self.engine.status()

    def cache_salt(self, tenant: str, narrow: str) -> bytes:
        """Requests share cached prefixes only with requests of an equal salt."""
        parts = (tenant.encode(), narrow.encode())
        data = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
        return hashlib.blake2b(data, digest_size=16, key=self._secret).digest()

    def not_ready(self) -> ServiceError:
        """The error of a request that comes while the model is not served."""
        status = self.engine.status()
        state = EngineState.LOADING if status.state is EngineState.READY else status.state
        metadata = {"state": str(state), "progress": f"{status.progress:.3f}"}
        if status.stage:
            metadata["stage"] = status.stage
        message = f"the model is not served now: its engine is {state}"
        return ServiceError("ENGINE_UNAVAILABLE", message, metadata=metadata)


class ServedModels:
    """The models of a server by name; one today."""

    def __init__(self, runtimes: Mapping[str, ModelRuntime]) -> None:
        self._runtimes = dict(runtimes)

    def find(self, name: str) -> ModelRuntime:
        """The model of a request; "" is the only one. Raises ServiceError MODEL_NOT_FOUND."""
        if not name and len(self._runtimes) == 1:
            return next(iter(self._runtimes.values()))
        if name not in self._runtimes:
            shown = name if len(name) <= 64 else name[:64] + "..."
            raise ServiceError(
                "MODEL_NOT_FOUND",
                f"the model {shown!r} is not served; served are {', '.join(self.names)}",
                metadata={"model": name},
            )
        return self._runtimes[name]

    @property
    def names(self) -> list[str]:
        """All names in order."""
        return sorted(self._runtimes)

    @property
    def runtimes(self) -> list[ModelRuntime]:
        """All models in the order of their names."""
        return [self._runtimes[name] for name in self.names]
