"""Client of the Tenon LLM inference service.

    from tenon import Client, chat

    with Client() as client:
        answer = client.generate_unary(chat("What is the capital of France?", temperature=0))
        print(answer.outputs[0].text)

`LLM` is the engine without a server and needs the distribution tenon-server.
"""

from typing import TYPE_CHECKING, Any

from tenon import errors
from tenon.aio import AsyncClient, GenerationStream
from tenon.specs import chat, completion
from tenon.sync import Client

if TYPE_CHECKING:
    from tenon.llm import LLM

__all__ = [
    "LLM",
    "AsyncClient",
    "Client",
    "GenerationStream",
    "__version__",
    "chat",
    "completion",
    "errors",
]

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name == "LLM":
        from tenon.llm import LLM

        return LLM
    raise AttributeError(f"module 'tenon' has no attribute {name!r}")
