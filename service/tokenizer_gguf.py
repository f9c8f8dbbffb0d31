"""Builds a tokenizer from the metadata of a GGUF file."""

from collections.abc import Mapping
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, processors

from service.pretokenizers import split_rule
from service.tokenizer_source import TokenizerError, TokenizerSource

_SPACE_MARK = "▁"
_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4

# Control tokens that end an answer wherever they exist; files often name only one of a model's.
_END_NAMES = frozenset(
    ("<|endoftext|>", "<|end_of_text|>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<end_of_turn>")
)


def tokenizer_from_metadata(metadata: Mapping[str, Any]) -> TokenizerSource:
    """Reads the `tokenizer.*` keys.

    Raises TokenizerError naming the key, the kind or the pre-tokenizer that is not supported.
    """
    kind = metadata.get("tokenizer.ggml.model")
    builder = {"gpt2": _byte_level, "llama": _sentencepiece}.get(str(kind))
    if builder is None:
        raise TokenizerError(f"unknown tokenizer.ggml.model {kind!r}; known are gpt2, llama")
    tokens = read_tokens(metadata)
    backend, adds_bos = builder(metadata, tokens)
    types = _read_list(metadata, "token_type", int, len(tokens))
    _add_named_tokens(backend, tokens, types)
    _add_ends(backend, metadata, tokens, adds_bos)
    bos_id, eos_id = _read_id(metadata, "bos", tokens), _read_id(metadata, "eos", tokens)
    return TokenizerSource(
        backend=backend,
        bos_id=bos_id,
        eos_id=eos_id,
        end_ids=_end_ids(metadata, tokens, types),
        chat_template=read_chat_template(metadata),
    )


def read_chat_template(metadata: Mapping[str, Any]) -> str | None:
    """The file's own chat template."""
    template = metadata.get("tokenizer.chat_template")
    return template if isinstance(template, str) else None


def read_tokens(metadata: Mapping[str, Any]) -> list[str]:
    """The token texts by id."""
    tokens = metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list) or not tokens:
        raise TokenizerError("tokenizer.ggml.tokens is missing: the file has no tokenizer")
    return _read_list(metadata, "tokens", str, len(tokens))


def _byte_level(
    metadata: Mapping[str, Any], tokens: list[str]
) -> tuple[tokenizers.Tokenizer, bool]:
    rule = split_rule(str(metadata.get("tokenizer.ggml.pre", "default")), TokenizerError)
    model = models.BPE(
        vocab=_ids_by_token(tokens),
        merges=_read_merges(metadata, frozenset(tokens)),
        ignore_merges=rule.takes_whole_words,
    )
    backend = tokenizers.Tokenizer(model)
    if (normalizer := rule.normalizer()) is not None:
        backend.normalizer = normalizer
    backend.pre_tokenizer = rule.pre_tokenizer()
    backend.decoder = decoders.ByteLevel()
    return backend, rule.adds_bos


def _sentencepiece(
    metadata: Mapping[str, Any], tokens: list[str]
) -> tuple[tokenizers.Tokenizer, bool]:
    """Merges the neighbours whose union has the highest score; bytes where no token fits."""
    scores = _read_list(metadata, "scores", float, len(tokens))
    unknown_id = _read_id(metadata, "unknown", tokens)
    model = models.BPE(
        vocab=_ids_by_token(tokens),
        merges=merges_from_scores(tokens, scores),
        unk_token=None if unknown_id is None else tokens[unknown_id],
        fuse_unk=True,
        byte_fallback=True,
    )
    backend = tokenizers.Tokenizer(model)
    has_prefix = metadata.get("tokenizer.ggml.add_space_prefix", True) is True
    mark_spaces = normalizers.Replace(" ", _SPACE_MARK)
    prefixed = [normalizers.Prepend(_SPACE_MARK), mark_spaces]
    backend.normalizer = normalizers.Sequence(prefixed) if has_prefix else mark_spaces
    strip = [decoders.Strip(" ", 1, 0)] if has_prefix else []
    unmark_spaces = decoders.Replace(_SPACE_MARK, " ")
    backend.decoder = decoders.Sequence(
        [unmark_spaces, decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    return backend, True


def merges_from_scores(tokens: list[str], scores: list[float]) -> list[tuple[str, str]]:
    """All ways to put a token together from two others, best token first."""
    ids = _ids_by_token(tokens)
    ranked = sorted(range(len(tokens)), key=lambda id_: -scores[id_])
    merges: list[tuple[str, str]] = []
    for id_ in ranked:
        token = tokens[id_]
        pairs = [(token[:cut], token[cut:]) for cut in range(1, len(token))]
        known = [pair for pair in pairs if pair[0] in ids and pair[1] in ids]
        merges += sorted(known, key=lambda pair: (ids[pair[0]], ids[pair[1]]))
    return merges


def _add_named_tokens(backend: tokenizers.Tokenizer, tokens: list[str], types: list[int]) -> None:
    """Control tokens are special; user-defined ones are found in any text but are text."""
    named = [
        AddedToken(token, normalized=False, special=type_ != _USER_DEFINED)
        for token, type_ in zip(tokens, types, strict=True)
        if type_ in (_UNKNOWN, _CONTROL, _USER_DEFINED) and token
    ]
    backend.add_tokens(named)


def _add_ends(
    backend: tokenizers.Tokenizer, metadata: Mapping[str, Any], tokens: list[str], adds_bos: bool
) -> None:
    """Puts BOS before and EOS after a text, as the file says."""
    ends = {}
    for name, default in (("bos", adds_bos), ("eos", False)):
        id_ = _read_id(metadata, name, tokens)
        if id_ is not None and metadata.get(f"tokenizer.ggml.add_{name}_token", default) is True:
            ends[name] = id_
    if not ends:
        return
    first, last = (["bos"] if "bos" in ends else []), (["eos"] if "eos" in ends else [])
    backend.post_processor = processors.TemplateProcessing(
        single=[*first, "$A", *last],
        pair=[*first, "$A", *last, "$B"],
        special_tokens=[
            {"id": name, "ids": [id_], "tokens": [tokens[id_]]} for name, id_ in ends.items()
        ],
    )


def _end_ids(metadata: Mapping[str, Any], tokens: list[str], types: list[int]) -> frozenset[int]:
    stated = [_read_id(metadata, name, tokens) for name in ("eos", "eot", "eom")]
    known = [
        id_
        for id_, (token, type_) in enumerate(zip(tokens, types, strict=True))
        if type_ == _CONTROL and token in _END_NAMES
    ]
    return frozenset(id_ for id_ in [*stated, *known] if id_ is not None)


def _read_merges(metadata: Mapping[str, Any], known: frozenset[str]) -> list[tuple[str, str]]:
    merges = []
    for merge in _read_list(metadata, "merges", str, None):
        left, _, right = merge.partition(" ")
        if left not in known or right not in known or left + right not in known:
            raise TokenizerError(f"tokenizer.ggml.merges: {merge!r} does not join two tokens")
        merges.append((left, right))
    return merges


def _read_list(metadata: Mapping[str, Any], name: str, kind: type, length: int | None) -> list[Any]:
    key = f"tokenizer.ggml.{name}"
    values = metadata.get(key)
    if not isinstance(values, list) or not all(isinstance(value, kind) for value in values):
        raise TokenizerError(f"{key} must be an array of {kind.__name__}")
    if length is not None and len(values) != length:
        raise TokenizerError(f"{key} has {len(values)} entries for {length} tokens")
    return values


def _read_id(metadata: Mapping[str, Any], name: str, tokens: list[str]) -> int | None:
    key = f"tokenizer.ggml.{name}_token_id"
    id_ = metadata.get(key)
    if id_ is None:
        return None
    if not isinstance(id_, int) or not 0 <= id_ < len(tokens):
        raise TokenizerError(f"{key} is {id_!r}; it must be an id below {len(tokens)}")
    return id_


def _ids_by_token(tokens: list[str]) -> dict[str, int]:
    return {token: id_ for id_, token in enumerate(tokens)}
