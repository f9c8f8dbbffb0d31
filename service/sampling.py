"""The sampling that a request gets: its own choice, else the model's default, else neutral."""

import secrets
from dataclasses import replace
from typing import TypeVar

from engine.loading.source import SamplingDefaults
from engine.request import SamplingParams
from service.options import OutputChoice, SamplingChoice

# Small enough for a double, so that a seed survives every JSON on its way back.
RANDOM_SEED_BITS = 53
MAX_SEED = 2**64

_Number = TypeVar("_Number", int, float)


def resolve_sampling(
    choice: SamplingChoice, output: OutputChoice, defaults: SamplingDefaults
) -> SamplingParams:
    """Effective parameters of output 0; a seed is drawn if none was chosen."""
    neutral = SamplingParams()
    return SamplingParams(
        temperature=_first(choice.temperature, defaults.temperature, neutral.temperature),
        top_p=_first(choice.top_p, defaults.top_p, neutral.top_p),
        top_k=_first(choice.top_k, defaults.top_k, neutral.top_k),
        min_p=_first(choice.min_p, defaults.min_p, neutral.min_p),
        presence_penalty=_first(choice.presence_penalty, None, neutral.presence_penalty),
        frequency_penalty=_first(choice.frequency_penalty, None, neutral.frequency_penalty),
        repetition_penalty=_first(
            choice.repetition_penalty, defaults.repetition_penalty, neutral.repetition_penalty
        ),
        logit_bias=choice.logit_bias,
        seed=secrets.randbits(RANDOM_SEED_BITS) if choice.seed is None else choice.seed,
        logprobs=output.logprobs,
    )


def sampling_of_output(params: SamplingParams, output_index: int) -> SamplingParams:
    """Output i is the single run with seed + i."""
    return replace(params, seed=(params.seed + output_index) % MAX_SEED)


def _first(chosen: _Number | None, default: _Number | None, neutral: _Number) -> _Number:
    if chosen is not None:
        return chosen
    return neutral if default is None else default
