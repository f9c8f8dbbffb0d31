"""Reads a model's own sampling defaults, whatever its file calls them."""

from collections.abc import Mapping

from engine.loading.source import SamplingDefaults
from engine.models.families.fields import Fields


def read_sampling_defaults(fields: Fields, names: Mapping[str, str]) -> SamplingDefaults:
    """names: the file's name of each default. FieldError names a value that is out of range."""
    return SamplingDefaults(
        temperature=_bounded(fields, names["temperature"], 0.0, 100.0),
        top_p=_bounded(fields, names["top_p"], 0.0, 1.0),
        top_k=_count(fields, names["top_k"]),
        min_p=_bounded(fields, names["min_p"], 0.0, 1.0),
        repetition_penalty=_bounded(fields, names["repetition_penalty"], 0.01, 100.0),
    )


def _bounded(fields: Fields, name: str, low: float, high: float) -> float | None:
    value = fields.get(name)
    if value is None:
        return None
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not low <= value <= high:
        raise fields.error(name, f"must be a number from {low:g} to {high:g}")
    return float(value)


def _count(fields: Fields, name: str) -> int | None:
    value = fields.get(name)
    if value is None:
        return None
    if type(value) is not int or not 0 <= value < 2**31:
        raise fields.error(name, "must be an integer from 0 to 2147483647")
    return value
