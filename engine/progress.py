"""Applies what a step computed to its requests: appends tokens, ends requests, writes outputs."""

import logging
from collections.abc import Callable

from engine.batch import ScheduledStep
from engine.constraint import (
    AcceptedToken,
    MaskBuilder,
    accept_drawn,
    accept_known,
    closing_path,
    next_known,
)
from engine.matcher import Matcher
from engine.outputs import OutputCollector
from engine.plan import SampleMask, StepResult
from engine.request import FinishReason, RequestError, TokenLogprobs
from engine.scheduler import Scheduler
from engine.sequence import ScheduledRow, Sequence

_log = logging.getLogger(__name__)

Clock = Callable[[], float]


class Progress:
    """Moves requests from token to token until each ends.

    For a constrained request the order is accept(n), known tokens, mask(n + 1), sample(n + 1);
    the forward pass of n + 1 may already run. One request's failing matcher ends that one only.
    """

    def __init__(
        self, scheduler: Scheduler, outputs: OutputCollector, vocab_size: int, clock: Clock
    ) -> None:
        self._scheduler = scheduler
        self._outputs = outputs
        self._vocab_size = vocab_size
        self._clock = clock

    def masks(self, step: ScheduledStep) -> SampleMask | None:
        """Allowed tokens of the samples of a step whose predecessors are all applied."""
        masks: MaskBuilder | None = None
        for row in step.rows:
            matcher = row.sequence.matcher
            if matcher is None or not row.is_draw_wanted:
                continue
            assert row.sample_index is not None
            masks = masks or MaskBuilder(len(step.plan.sampling), self._vocab_size)
            self._mask_row(row, row.sample_index, matcher, masks)
        return masks.build() if masks is not None else None

    def apply(self, step: ScheduledStep, result: StepResult) -> None:
        """Takes the tokens of a step. Rows of requests that ended meanwhile are dropped."""
        for row in step.rows:
            sequence = row.sequence
            sequence.in_flight.remove(row)
            if sequence.is_finished:
                continue
            self._scheduler.confirm(row)
            if row.end >= sequence.num_prompt:
                self._outputs.report_prompt(sequence)
            if row.is_draw_wanted:
                assert row.sample_index is not None
                token = int(result.token_ids[row.sample_index])
                self._take_drawn(sequence, token, result.logprobs[row.sample_index])
            if not sequence.is_finished and sequence.is_prompt_reported:
                self._outputs.emit_settled(sequence)
        self._scheduler.complete(step)

    def close(self, sequence: Sequence, reason: FinishReason) -> None:
        """Ends a request now; a constrained answer is completed first."""
        if sequence.matcher is not None:
            try:
                path = closing_path(sequence.matcher, sequence.remaining)
                self._append_closing(sequence, sequence.matcher, path)
            except Exception:
                self._fail_constraint(sequence)
                return
        self.finish(sequence, reason)

    def finish(
        self, sequence: Sequence, reason: FinishReason, *, stop_token_id: int | None = None
    ) -> None:
        """Ends a request with all that it produced."""
        sequence.settled = sequence.num_output
        self._scheduler.publish(sequence)
        self._end(sequence, reason, stop_token_id=stop_token_id)

    def fail(self, sequence: Sequence, error: RequestError) -> None:
        """Ends a request with an error after what had settled."""
        self._end(sequence, FinishReason.ERROR, error=error)

    def _mask_row(
        self, row: ScheduledRow, sample_index: int, matcher: Matcher, masks: MaskBuilder
    ) -> None:
        sequence = row.sequence
        try:
            if sequence.num_output == 0:
                # Later on, known tokens are looked for right after each accepted token.
                self._append_known(sequence, matcher)
            if row.is_draw_wanted:
                masks.fill(sample_index, matcher)
        except Exception:
            self._fail_constraint(sequence)

    def _take_drawn(self, sequence: Sequence, token: int, logprobs: TokenLogprobs | None) -> None:
        if sequence.times.first_token is None:
            sequence.times.first_token = self._clock()
        matcher = sequence.matcher
        if matcher is None:
            settled = sequence.num_output + 1
            self._append(sequence, AcceptedToken(token, 0, settled, False), logprobs)
            return
        try:
            accepted = accept_drawn(matcher, token)
            if accepted.is_override:
                # The step in flight computed the token that has just been replaced.
                sequence.rewind(len(sequence.tokens))
                logprobs = None
            self._append(sequence, accepted, logprobs)
            self._append_known(sequence, matcher)
        except Exception:
            self._fail_constraint(sequence)

    def _append_known(self, sequence: Sequence, matcher: Matcher) -> None:
        """Appends what needs no draw. A draw in flight for one of these places is dropped."""
        while not sequence.is_finished:
            known = next_known(matcher, sequence.remaining)
            if known is None:
                return
            if known.is_closing:
                self._append_closing(sequence, matcher, known.tokens)
                self.finish(sequence, FinishReason.LENGTH)
                return
            sequence.drop_draws()
            for accepted in accept_known(matcher, known.tokens):
                sequence.counts.forced += 1
                self._append(sequence, accepted, None)
                if sequence.is_finished:
                    return

    def _append_closing(self, sequence: Sequence, matcher: Matcher, path: tuple[int, ...]) -> None:
        sequence.drop_draws()
        for accepted in accept_known(matcher, path[: sequence.remaining]):
            sequence.counts.closing += 1
            sequence.append(accepted.token, accepted.segment, None)

    def _append(
        self, sequence: Sequence, accepted: AcceptedToken, logprobs: TokenLogprobs | None
    ) -> None:
        """Appends an output token and ends the request if it was the last one."""
        token, matcher = accepted.token, sequence.matcher
        sequence.append(token, accepted.segment, logprobs)
        sequence.settled = min(accepted.settled, sequence.num_output)
        if token in sequence.spec.stop_token_ids:
            self.finish(sequence, FinishReason.STOP, stop_token_id=token)
        elif matcher is not None and matcher.terminated:
            self.finish(sequence, FinishReason.STOP)
        elif sequence.remaining == 0:
            self.finish(sequence, FinishReason.LENGTH)

    def _fail_constraint(self, sequence: Sequence) -> None:
        """Called in an except block: the text goes to the log, never to the caller."""
        _log.exception("The constraint of request %s failed", sequence.request_id)
        self.fail(sequence, RequestError("INTERNAL", "the request's constraint failed"))

    def _end(
        self,
        sequence: Sequence,
        reason: FinishReason,
        *,
        stop_token_id: int | None = None,
        error: RequestError | None = None,
    ) -> None:
        assert not sequence.is_finished
        if sequence.settled > 0:
            self._outputs.report_prompt(sequence)
        self._outputs.emit_settled(sequence)
        stats = sequence.stats(self._clock())
        self._outputs.finish(
            sequence.request_id, reason, stats=stats, stop_token_id=stop_token_id, error=error
        )
        self._scheduler.remove(sequence)
