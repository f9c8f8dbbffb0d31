"""Which requests the engine takes into its queue, and what it says to the others."""

from dataclasses import dataclass

from engine.config import EngineConfig, EngineInfo
from engine.request import RequestError, RequestSpec
from engine.waiting import DrainRate, WaitingQueue


@dataclass(frozen=True, slots=True)
class Admission:
    """The bounds of one engine."""

    config: EngineConfig
    info: EngineInfo

    def output_limit(self, spec: RequestSpec) -> int:
        """Output tokens that a request may produce: its own bound or the rest of the context."""
        return min(spec.max_tokens, self.info.max_model_len - len(spec.prompt_ids))

    def refuse(
        self,
        spec: RequestSpec,
        waiting: WaitingQueue,
        num_free_slots: int,
        rate: DrainRate,
        now: float,
    ) -> RequestError | None:
        """Why a request cannot be taken; None if it can."""
        return (
            self._refuse_malformed(spec)
            or self._refuse_too_long(spec)
            or self._refuse_overload(spec, waiting, num_free_slots, rate, now)
        )

    def _refuse_malformed(self, spec: RequestSpec) -> RequestError | None:
        vocab_size = self.info.vocab_size
        if not spec.prompt_ids:
            return _error("INVALID_FIELD", "the prompt has no tokens", field="prompt_ids")
        if min(spec.prompt_ids) < 0 or max(spec.prompt_ids) >= vocab_size:
            message = f"the prompt has token ids outside 0 to {vocab_size - 1}"
            return _error("INVALID_FIELD", message, field="prompt_ids")
        if spec.max_tokens < 1:
            message = f"max_tokens is {spec.max_tokens}; it must be at least 1"
            return _error("INVALID_FIELD", message, field="max_tokens")
        return None

    def _refuse_too_long(self, spec: RequestSpec) -> RequestError | None:
        num_prompt, max_model_len = len(spec.prompt_ids), self.info.max_model_len
        if num_prompt >= max_model_len:
            return _error(
                "CONTEXT_LENGTH_EXCEEDED",
                f"the prompt has {num_prompt} tokens, which leaves no room for an answer in a "
                f"context of {max_model_len}",
                max_model_len=max_model_len,
                prompt_tokens=num_prompt,
                requested_tokens=num_prompt + spec.max_tokens,
            )
        needed = -(-num_prompt // self.info.block_size)
        if needed > self.info.num_blocks:
            return _error(
                "KV_CACHE_TOO_SMALL",
                f"the prompt needs {needed} KV blocks of {self.info.block_size} tokens; the cache "
                f"has {self.info.num_blocks}",
                needed_blocks=needed,
                total_blocks=self.info.num_blocks,
                block_size=self.info.block_size,
                prompt_tokens=num_prompt,
            )
        return None

    def _refuse_overload(
        self,
        spec: RequestSpec,
        waiting: WaitingQueue,
        num_free_slots: int,
        rate: DrainRate,
        now: float,
    ) -> RequestError | None:
        # Requests enter through the queue even when a slot is free; those do not wait.
        places = self.config.max_waiting_requests + num_free_slots
        num_tokens = waiting.num_tokens + len(spec.prompt_ids)
        # A prompt above the bound is still taken when nothing else waits, else it never would be.
        has_room = num_tokens <= self.config.max_waiting_tokens or len(waiting) == 0
        if len(waiting) < places and has_room:
            return None
        return _error(
            "QUEUE_FULL",
            f"{len(waiting)} requests with {waiting.num_tokens} prompt tokens are waiting",
            waiting_requests=len(waiting),
            waiting_tokens=waiting.num_tokens,
            max_waiting_requests=self.config.max_waiting_requests,
            max_waiting_tokens=self.config.max_waiting_tokens,
            retry_after_seconds=f"{rate.retry_after(len(waiting), now):.1f}",
        )


def _error(reason: str, message: str, **metadata: int | str) -> RequestError:
    numbers = tuple((name, str(value)) for name, value in metadata.items())
    return RequestError(reason, message, numbers)
