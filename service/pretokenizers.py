"""How byte-level vocabularies of GGUF files split text before merging, by the name in the file.

A wrong split still gives text, only worse answers, so an unknown name is refused, never guessed.
"""

from collections.abc import Callable
from dataclasses import dataclass

from tokenizers import Regex, normalizers, pre_tokenizers
from tokenizers.normalizers import Normalizer
from tokenizers.pre_tokenizers import PreTokenizer

_CONTRACTIONS_ANY_CASE = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_PUNCTUATION_AND_SPACE = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"

# Digits in groups of up to three, and one by one.
_LLAMA3 = f"{_CONTRACTIONS_ANY_CASE}|{_WORD}|\\p{{N}}{{1,3}}|{_PUNCTUATION_AND_SPACE}"
_QWEN2 = f"{_CONTRACTIONS_ANY_CASE}|{_WORD}|\\p{{N}}|{_PUNCTUATION_AND_SPACE}"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"


@dataclass(frozen=True, slots=True)
class SplitRule:
    """One way to split: regular expressions that each isolate their matches in what came before.

    takes_whole_words: a piece that is itself a token is taken without merging.
    adds_bos: the default where the file does not say. is_nfc: text is composed (NFC) first.
    """

    patterns: tuple[str, ...]
    takes_whole_words: bool = False
    adds_bos: bool = False
    is_nfc: bool = False

    def pre_tokenizer(self) -> PreTokenizer:
        """Splits, then writes each byte as its printable stand-in."""
        splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in self.patterns]
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return pre_tokenizers.Sequence([*splits, byte_level])

    def normalizer(self) -> Normalizer | None:
        """What happens to the text before it is split."""
        return normalizers.NFC() if self.is_nfc else None


_GPT2_RULE = SplitRule((_GPT2,))
_SINGLE_DIGITS_RULE = SplitRule((r"\p{N}", _GPT2))
_LLAMA3_RULE = SplitRule((_LLAMA3,), takes_whole_words=True, adds_bos=True)
_QWEN2_RULE = SplitRule((_QWEN2,), is_nfc=True)
_DEFAULT_RULE = SplitRule((r"[\p{P}$+<=>^~|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"))

SPLIT_RULES = {
    "codeshell": _SINGLE_DIGITS_RULE,
    "deepseek-r1-qwen": _QWEN2_RULE,
    "default": _DEFAULT_RULE,
    "gpt-2": _GPT2_RULE,
    "llama-bpe": _LLAMA3_RULE,
    "llama-v3": _LLAMA3_RULE,
    "llama3": _LLAMA3_RULE,
    "qwen2": _QWEN2_RULE,
    "refact": _SINGLE_DIGITS_RULE,
    "smollm": _SINGLE_DIGITS_RULE,
    "starcoder": _SINGLE_DIGITS_RULE,
}


def split_rule(name: str, error: Callable[[str], Exception]) -> SplitRule:
    """The rule with this name; raises `error` of a message that lists the known ones."""
    if name not in SPLIT_RULES:
        known = ", ".join(sorted(SPLIT_RULES))
        raise error(
            f"unknown pre-tokenizer {name!r} (tokenizer.ggml.pre); known are {known}. "
            "A tokenizer.json beside the file is used instead"
        )
    return SPLIT_RULES[name]
