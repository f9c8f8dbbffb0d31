"""What a caller asked for, validated: the plain data between the protos and a generation."""

from dataclasses import dataclass

from engine.request import Priority
from grammar.spec import ConstraintSpec


@dataclass(frozen=True, slots=True)
class SamplingChoice:
    """Sampling as the caller set it; None takes the model's default."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    num_outputs: int = 1
    logit_bias: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class StopChoice:
    """When an output ends. max_tokens None goes on to the context limit; duration in seconds."""

    max_tokens: int | None = None
    min_tokens: int = 0
    stop_strings: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_string: bool = False
    ignore_eos: bool = False
    max_duration: float | None = None


@dataclass(frozen=True, slots=True)
class OutputChoice:
    """What is returned. logprobs: None for none, else the number of alternatives."""

    token_ids: bool = False
    logprobs: int | None = None
    skip_text: bool = False
    prompt_token_ids: bool = False
    special_tokens: bool = False


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message of a conversation, as the chat template sees it."""

    role: str
    content: str
    name: str = ""
    reasoning: str = ""


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A conversation to render."""

    messages: tuple[ChatMessage, ...]
    continue_final_message: bool = False
    variables_json: str = ""


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """Raw text. add_special_tokens None is the model's default."""

    text: str
    add_special_tokens: bool | None = None


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """Token ids that are fed as they are."""

    ids: tuple[int, ...]


PromptSource = ChatPrompt | TextPrompt | TokenPrompt


@dataclass(frozen=True, slots=True)
class GenerationOptions:
    """One validated GenerationSpec. max_queue_time in seconds."""

    prompt: PromptSource
    truncate: bool
    sampling: SamplingChoice
    stop: StopChoice
    output: OutputChoice
    constraint: ConstraintSpec | None = None
    priority: Priority = Priority.STANDARD
    max_queue_time: float | None = None
    bypass_cache: bool = False
    cache_narrow: str = ""
