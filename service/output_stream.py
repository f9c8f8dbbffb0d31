"""Folds what the engine did for one output into its events: text, tokens, the end."""

from dataclasses import dataclass

from engine.request import FinishReason, RequestOutput, RequestStats, TokenLogprobs
from service import events
from service.detokenizer import Detokenizer
from service.events import Event
from service.options import OutputChoice, StopChoice
from service.stop_strings import StopMatcher
from service.tokenizer import Tokenizer


@dataclass(slots=True)
class Timeline:
    """When things happened to one output, in seconds of the generation's clock."""

    started: float | None = None
    prompt_processed: float | None = None
    first_token: float | None = None
    last_token: float | None = None

    def as_stats(self, arrival: float) -> RequestStats:
        """Times as the service saw them: an output that a stop string ended has no others."""
        started = arrival if self.started is None else self.started
        processed = started if self.prompt_processed is None else self.prompt_processed
        first = processed if self.first_token is None else self.first_token
        last = first if self.last_token is None else self.last_token
        return RequestStats(
            queue=started - arrival,
            prefill=processed - started,
            decode=last - first,
            first_token=first - arrival,
        )


class OutputStream:
    """The state of one output. Text is held back while it may belong to a stop string.

    num_tokens counts to the token that completes a stop string; what the engine computed after it
    is dropped.
    """

    def __init__(
        self, index: int, tokenizer: Tokenizer, stop: StopChoice, output: OutputChoice
    ) -> None:
        self.index = index
        self.num_tokens = 0
        self.is_finished = False
        self.stats: RequestStats | None = None
        self.timeline = Timeline()
        self._output = output
        self._shows_stop_token = stop.include_stop_string or output.special_tokens
        self._token_bytes = tokenizer.token_bytes
        self._detokenizer = Detokenizer(tokenizer, skip_special=not output.special_tokens)
        self._matcher = (
            StopMatcher(stop.stop_strings, include_stop=stop.include_stop_string)
            if stop.stop_strings
            else None
        )
        self._pending_text: list[str] = []
        self._pending_ids: list[int] = []
        self._pending_logprobs: list[TokenLogprobs] = []

    def take(self, output: RequestOutput, now: float) -> None:
        """Takes the tokens of one step and notes the time."""
        if output.token_ids:
            if self.timeline.first_token is None:
                self.timeline.first_token = now
            self.timeline.last_token = now
        hidden = output.stop_token_id if not self._shows_stop_token else None
        num_taken = self._take_text(output.token_ids, hidden)
        self.num_tokens += num_taken
        self._pending_ids += output.token_ids[:num_taken]
        self._pending_logprobs += output.logprobs[:num_taken]
        if output.stats is not None:
            self.stats = output.stats

    @property
    def stop_string(self) -> str | None:
        """The stop string that ended the text, if one did."""
        return self._matcher.matched if self._matcher is not None else None

    def finish(self, reason: FinishReason, stop_token_id: int | None = None) -> list[Event]:
        """The last events of this output. A character that a limit cut in two is dropped."""
        if self.stop_string is None and reason is FinishReason.STOP:
            self._pending_text.append(self._scan(self._detokenizer.flush()))
        if self.stop_string is None and self._matcher is not None:
            self._pending_text.append(self._matcher.flush())
        self.is_finished = True
        # A stop that the last unfinished character completes counts as one too.
        if self.stop_string is not None:
            reason, stop_token_id = FinishReason.STOP, None
        end = events.output_finished(
            self.index,
            reason,
            self.num_tokens,
            stop_string=self.stop_string,
            stop_token_id=stop_token_id,
        )
        return [*self.drain(), end]

    def drain(self) -> list[Event]:
        """The deltas since the last call, joined: at most one of text and one of tokens."""
        drained: list[Event] = []
        text = "".join(self._pending_text)
        if text and not self._output.skip_text:
            drained.append(events.text(self.index, text))
        if self._pending_ids and (self._output.token_ids or self._output.logprobs is not None):
            drained.append(self._tokens_event())
        self._pending_text.clear()
        self._pending_ids.clear()
        self._pending_logprobs.clear()
        return drained

    def _take_text(self, token_ids: tuple[int, ...], hidden: int | None) -> int:
        """Detokenizes until a stop string is complete; returns how many tokens that took.

        hidden: the token that ends the answer, whose text is not part of it.
        """
        if self._matcher is None:
            shown = token_ids[:-1] if hidden is not None else token_ids
            self._pending_text.append(self._detokenizer.push(shown))
            return len(token_ids)
        for position, token_id in enumerate(token_ids):
            if hidden is not None and position == len(token_ids) - 1:
                break
            self._pending_text.append(self._scan(self._detokenizer.push((token_id,))))
            if self._matcher.matched is not None:
                return position + 1
        return len(token_ids)

    def _scan(self, text: str) -> str:
        return text if self._matcher is None else self._matcher.push(text).text

    def _tokens_event(self) -> Event:
        columns = None
        if self._output.logprobs is not None:
            columns = events.logprob_columns(
                self._pending_ids, self._pending_logprobs, self._output.logprobs, self._token_bytes
            )
        ids = self._pending_ids if self._output.token_ids else ()
        return events.tokens(self.index, ids, columns)
