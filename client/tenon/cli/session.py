"""A chat with a model: the conversation so far and the settings of its next answer."""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tenon.specs import chat
from tenon.sync import Client
from tenon.v1 import generation_pb2


@dataclass(frozen=True, slots=True)
class SamplingSettings:
    """What a user may set; None takes the model's default."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    max_tokens: int | None = None

    def as_arguments(self) -> dict[str, Any]:
        """Keyword arguments of tenon.chat and tenon.completion."""
        return dataclasses.asdict(self)

    def changed(self, name: str, text: str) -> "SamplingSettings":
        """With one value set from text, or back to the default. Raises ValueError."""
        parsers = {"temperature": float, "top_p": float, "top_k": int, "seed": int}
        parsers["max_tokens"] = int
        if name not in parsers:
            raise ValueError(f"{name} cannot be set; can be: {', '.join(parsers)}")
        if text == "default":
            return dataclasses.replace(self, **{name: None})
        try:
            value = parsers[name](text)
        except ValueError:
            raise ValueError(f"{text!r} is not a number for {name}") from None
        if value < 0:
            raise ValueError(f"{name} must not be below 0")
        return dataclasses.replace(self, **{name: value})


class ChatSession:
    """The conversation. An answer that was stopped stays in it as far as it came."""

    def __init__(
        self, client: Client, model: str, system: str | None, settings: SamplingSettings
    ) -> None:
        self.model = model
        self.system = system
        self.settings = settings
        self.finished: generation_pb2.Finished | None = None
        self._client = client
        self._messages: list[dict[str, str]] = []

    @property
    def num_messages(self) -> int:
        """Messages so far, without the system message."""
        return len(self._messages)

    def clear(self) -> None:
        """Forgets the conversation; the system message and the settings stay."""
        self._messages.clear()

    def drop_last_answer(self) -> str | None:
        """Takes back the last exchange; returns what the user said, None if there is none."""
        if not self._messages:
            return None
        question = self._messages[-2]["content"]
        del self._messages[-2:]
        return question

    def answer(self, text: str) -> Iterator[str]:
        """Asks and yields the answer as it comes. Closing the iterator stops the generation."""
        question = {"role": "user", "content": text}
        system = [{"role": "system", "content": self.system}] if self.system else []
        spec = chat(
            [*system, *self._messages, question], model=self.model, **self.settings.as_arguments()
        )
        self.finished = None
        pieces: list[str] = []
        try:
            for event in self._client.generate(spec):
                if event.HasField("text"):
                    pieces.append(event.text.text)
                    yield event.text.text
                elif event.HasField("finished"):
                    self.finished = event.finished
        finally:
            if pieces:
                self._messages += [question, {"role": "assistant", "content": "".join(pieces)}]
