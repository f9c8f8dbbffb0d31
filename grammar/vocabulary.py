"""The vocabulary of a model as a grammar sees it: bytes, special flags and end ids."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Tokens by id.

    token_bytes: the exact bytes of each id, b"" for ids that may never be sampled.
    special_ids: control tokens, whose bytes are a name and not output text.
    end_ids: ids that end an answer.
    hash: sha256 over all of it; equal hashes mean that a compiled grammar may be shared.
    """

    token_bytes: tuple[bytes, ...]
    special_ids: frozenset[int]
    end_ids: frozenset[int]
    hash: str = field(init=False)

    def __post_init__(self) -> None:
        for name in ("special_ids", "end_ids"):
            for id_ in getattr(self, name):
                if not 0 <= id_ < len(self.token_bytes):
                    raise ValueError(
                        f"{name} holds {id_}; ids are below {len(self.token_bytes)}, "
                        "the size of the vocabulary"
                    )
        object.__setattr__(self, "hash", self._digest())

    @property
    def size(self) -> int:
        """Number of ids."""
        return len(self.token_bytes)

    def text_ids(self) -> Iterable[int]:
        """Ids that write text: neither special, nor an end, nor without bytes."""
        excluded = self.special_ids | self.end_ids
        return (id_ for id_, data in enumerate(self.token_bytes) if data and id_ not in excluded)

    def _digest(self) -> str:
        digest = hashlib.sha256()
        for data in self.token_bytes:
            digest.update(len(data).to_bytes(4, "little") + data)
        for ids in (self.special_ids, self.end_ids):
            listed = sorted(ids)
            digest.update(len(listed).to_bytes(4, "little"))
            digest.update(b"".join(id_.to_bytes(4, "little") for id_ in listed))
        return digest.hexdigest()


def padded_vocabulary(
    token_bytes: Sequence[bytes],
    special_ids: Iterable[int],
    end_ids: Iterable[int],
    size: int,
) -> Vocabulary:
    """A vocabulary with one entry for each logit of the model's head.

    size: EngineInfo.vocab_size. Ids above it never come from the model and are cut off; rows of
    the head without a token get b"".
    """
    padded = (*token_bytes[:size], *[b""] * (size - len(token_bytes)))
    return Vocabulary(
        token_bytes=padded,
        special_ids=frozenset(id_ for id_ in special_ids if id_ < size),
        end_ids=frozenset(id_ for id_ in end_ids if id_ < size),
    )
