"""Log probabilities in the two shapes of the API: per token for chat, in columns for text."""

from typing import Any

from tenon.v1 import generation_pb2

# JSON has no infinity; this is what OpenAI sends for a token that is impossible.
LEAST_LOGPROB = -9999.0


def token_text(token: bytes) -> str:
    """A token as text; one that is a part of a character is spelled out byte by byte."""
    try:
        return token.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token)


def without_end_token(
    logprobs: generation_pb2.Logprobs, finished: generation_pb2.OutputFinished
) -> generation_pb2.Logprobs:
    """Drops the token that ended the output: it is counted, but not a part of the text."""
    ids = logprobs.token_ids
    if not finished.HasField("stop_token_id") or not ids or ids[-1] != finished.stop_token_id:
        return logprobs
    kept = len(ids) - 1
    return generation_pb2.Logprobs(
        token_ids=ids[:kept],
        values=logprobs.values[:kept],
        token_bytes=logprobs.token_bytes[:kept],
        top=logprobs.top[:kept],
    )


def chat_logprobs(logprobs: generation_pb2.Logprobs) -> list[dict[str, Any]]:
    """One object per token, with its alternatives, best first."""
    entries = []
    for i, token in enumerate(logprobs.token_bytes):
        entry = _entry(token, logprobs.values[i])
        entry["top_logprobs"] = _alternatives(logprobs.top[i]) if i < len(logprobs.top) else []
        entries.append(entry)
    return entries


class LegacyLogprobs:
    """The four columns of a completion, part by part; `text_offset` counts characters."""

    def __init__(self, has_alternatives: bool, offset: int = 0) -> None:
        self._has_alternatives = has_alternatives
        self._offset = offset

    def part(self, logprobs: generation_pb2.Logprobs) -> dict[str, Any]:
        """The columns of the next tokens."""
        offsets = []
        for token in logprobs.token_bytes:
            offsets.append(self._offset)
            # A character counts where its first byte is, so offsets grow inside of none.
            self._offset += sum(byte & 0xC0 != 0x80 for byte in token)
        return {
            "tokens": [token_text(token) for token in logprobs.token_bytes],
            "token_logprobs": [_finite(value) for value in logprobs.values],
            "top_logprobs": self._top(logprobs) if self._has_alternatives else None,
            "text_offset": offsets,
        }

    def _top(self, logprobs: generation_pb2.Logprobs) -> list[dict[str, float]]:
        columns = []
        for i, top in enumerate(logprobs.top):
            best = {
                token_text(token): _finite(value)
                for token, value in zip(top.token_bytes, top.values, strict=True)
            }
            best.setdefault(token_text(logprobs.token_bytes[i]), _finite(logprobs.values[i]))
            columns.append(best)
        return columns


def _entry(token: bytes, value: float) -> dict[str, Any]:
    return {"token": token_text(token), "logprob": _finite(value), "bytes": list(token)}


def _alternatives(top: generation_pb2.TopLogprobs) -> list[dict[str, Any]]:
    return [_entry(token, value) for token, value in zip(top.token_bytes, top.values, strict=True)]


def _finite(value: float) -> float:
    return max(value, LEAST_LOGPROB)
