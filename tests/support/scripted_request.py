"""One sequence in the scripted engine: what it generates and when it ends."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engine.request import FinishReason, RequestOutput, RequestSpec, RequestStats, TokenLogprobs
from service.engine_client import OutputListener

BLOCK_SIZE = 16

# Token ids of one sequence. When they are used up, the request's first stop id follows; without
# one they are repeated.
Script = Callable[[RequestSpec], Sequence[int]]


@dataclass(slots=True)
class ScriptedRequest:
    """One sequence in the scripted engine."""

    spec: RequestSpec
    script: Sequence[int]
    listener: OutputListener
    num_output: int = 0
    is_running: bool = False
    reported_position: int | None = None

    @property
    def num_blocks(self) -> int:
        """Blocks it holds while it runs."""
        return -(-(len(self.spec.prompt_ids) + self.num_output) // BLOCK_SIZE)

    def next_token(self) -> int:
        """The token of its next step."""
        if self.num_output < len(self.script):
            return self.script[self.num_output]
        if self.spec.stop_token_ids:
            return self.spec.stop_token_ids[0]
        return self.script[self.num_output % len(self.script)]

    def generate(self, num_tokens: int, cached_tokens: int, now: float) -> RequestOutput:
        """What a step of `num_tokens` does for it."""
        spec, is_first = self.spec, self.num_output == 0
        ids: list[int] = []
        finish, stop_id = None, None
        while finish is None and len(ids) < num_tokens:
            ids.append(self.next_token())
            self.num_output += 1
            if ids[-1] in spec.stop_token_ids:
                finish, stop_id = FinishReason.STOP, ids[-1]
            elif self.num_output >= spec.max_tokens:
                finish = FinishReason.LENGTH
            elif spec.close_at is not None and now > spec.close_at:
                finish = FinishReason.TIME_LIMIT
        return RequestOutput(
            spec.request_id,
            started=is_first,
            cached_tokens=cached_tokens if is_first else None,
            token_ids=tuple(ids),
            logprobs=tuple(_logprobs_of(id_, spec.sampling.logprobs) for id_ in ids)
            if spec.sampling.logprobs is not None
            else (),
            finish_reason=finish,
            stop_token_id=stop_id,
            stats=RequestStats(queue=0.25, decode=0.5) if finish is not None else None,
        )


def _logprobs_of(token_id: int, num_top: int | None) -> TokenLogprobs:
    """Made up, but a function of the token: the chosen one is the best."""
    top = range(num_top or 0)
    return TokenLogprobs(
        logprob=-0.25 * (token_id % 4 + 1),
        top_ids=tuple((token_id + offset) % 256 + 3 if offset else token_id for offset in top),
        top_logprobs=tuple(-0.25 * (token_id % 4 + 1) - offset for offset in top),
    )
