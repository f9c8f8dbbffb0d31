"""Chooses where an engine runs."""

from engine.config import EngineConfig
from service.engine_client import EngineClient, EngineFactory
from service.process_client import ProcessClient
from service.thread_client import ThreadClient

ISOLATIONS = ("auto", "thread", "process")


def create_engine_client(factory: EngineFactory, isolation: str = "auto") -> EngineClient:
    """A client that is not started yet.

    isolation: "thread", "process", or "auto": a thread on a CPU, where a second process would
    compete for the same cores, and a process on a GPU. Raises ValueError for anything else.
    """
    if isolation not in ISOLATIONS:
        raise ValueError(f"isolation is {isolation!r}; allowed are {', '.join(ISOLATIONS)}")
    if isolation == "auto":
        isolation = "process" if _runs_on_cuda(factory.config) else "thread"
    return ProcessClient(factory) if isolation == "process" else ThreadClient(factory)


def _runs_on_cuda(config: EngineConfig) -> bool:
    if config.device != "auto":
        return config.device == "cuda"
    import torch  # late: it takes a second, and a named device needs no question

    return torch.cuda.is_available()
