"""The served models, asked of the service at most once in a while."""

import asyncio
import time

from tenon import AsyncClient
from tenon.v1 import model_pb2

MAX_AGE_S = 5.0
ANSWER_TIMEOUT_S = 10.0


class ModelCatalog:
    """Models by name and alias. The list is what interfaces use to test their connection."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._models: list[model_pb2.Model] = []
        self._read_at: float | None = None
        self._lock = asyncio.Lock()

    async def models(self) -> list[model_pb2.Model]:
        """All models, at most MAX_AGE_S old. Raises TenonError, or TimeoutError."""
        async with self._lock:
            if self._read_at is None or time.monotonic() - self._read_at > MAX_AGE_S:
                self._models = await self.read()
                self._read_at = time.monotonic()
            return self._models

    async def find(self, name: str) -> model_pb2.Model | None:
        """The model of a name or an alias."""
        for model in await self.models():
            if name == model.name or name in model.aliases:
                return model
        return None

    async def read(self) -> list[model_pb2.Model]:
        """All models as the service says now."""
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            return await self._client.list_models()
