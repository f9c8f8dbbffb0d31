"""The plain data that goes into and comes out of the engine: no behaviour, no objects with handles.

Times are seconds of `time.monotonic()`, which all processes of one machine share.
"""

from dataclasses import dataclass
from enum import StrEnum


class FinishReason(StrEnum):
    """Why a request ended."""

    STOP = "stop"
    LENGTH = "length"
    TIME_LIMIT = "time_limit"
    ENDED = "ended"
    ABORTED = "aborted"
    ERROR = "error"


class Priority(StrEnum):
    """How urgent a request is."""

    BATCH = "batch"
    STANDARD = "standard"
    INTERACTIVE = "interactive"


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are drawn.

    Order: penalties and bias on raw logits, mask, temperature, top_k, top_p, min_p, then
    exponential-noise argmax with a counter RNG of (seed, output position).
    temperature 0 is greedy; top_k 0 and top_p 1 and min_p 0 are off; penalties follow OpenAI
    (presence, frequency: over output tokens) and CTRL (repetition: over prompt and output).
    logprobs: None for none, else the number of alternatives to report beside the chosen token.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int = 0
    logprobs: int | None = None

    @property
    def has_penalties(self) -> bool:
        """Whether drawing needs the tokens seen so far."""
        return (
            self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
            or self.repetition_penalty != 1.0
        )


@dataclass(frozen=True, slots=True)
class RequestSpec:
    """One sequence to generate. `request_id` is unique among those in the engine.

    stop_token_ids: ids that end the answer (the model's end ids are among them unless the caller
    ignores them); none of them is drawn before min_tokens.
    salt: isolates the prefix cache; equal salts share. arrival: when the service took the request.
    deadline: the request is dropped then. close_at: it is ended with TIME_LIMIT then.
    start_by: it is refused if it has not started then.
    """

    request_id: str
    prompt_ids: tuple[int, ...]
    sampling: SamplingParams
    max_tokens: int
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    priority: Priority = Priority.STANDARD
    tenant: str = ""
    weight: float = 1.0
    salt: bytes = b""
    bypass_prefix_cache: bool = False
    arrival: float = 0.0
    deadline: float | None = None
    close_at: float | None = None
    start_by: float | None = None


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log probabilities at one position, natural logarithms of the raw distribution."""

    logprob: float
    top_ids: tuple[int, ...] = ()
    top_logprobs: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class RequestStats:
    """Where the time and the work of a finished request went. Times in seconds."""

    queue: float = 0.0
    prefill: float = 0.0
    decode: float = 0.0
    first_token: float = 0.0
    constraint_wait: float = 0.0
    preemptions: int = 0
    recomputed_tokens: int = 0
    forced_tokens: int = 0
    closing_tokens: int = 0


@dataclass(frozen=True, slots=True)
class RequestError:
    """Why the engine refused or dropped a request.

    reason: a name of tenon.v1.ErrorReason without its prefix, for example "QUEUE_FULL".
    metadata: the numbers that the message mentions, as text.
    """

    reason: str
    message: str
    metadata: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """What one step did for one request. Fields that did not happen keep their default.

    queue_position: sent while waiting. started: it got its slot. cached_tokens: set in the step
    that finished the prompt. token_ids: settled tokens of this step, the stop token included.
    segments: the grammar segment of each token, empty for free requests.
    finish_reason ends the request; with ERROR, `error` says why; stop_token_id with STOP.
    """

    request_id: str
    queue_position: int | None = None
    estimated_wait: float | None = None
    started: bool = False
    cached_tokens: int | None = None
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    segments: tuple[int, ...] = ()
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
    stats: RequestStats | None = None
    error: RequestError | None = None


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """What the engine holds after a step. A block is used while some request holds it."""

    running: int = 0
    waiting: int = 0
    waiting_tokens: int = 0
    kv_blocks_used: int = 0
    kv_blocks_total: int = 0
    steps: int = 0
    preemptions: int = 0
    recomputed_tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
