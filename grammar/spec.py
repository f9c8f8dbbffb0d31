"""What a request constrains its output to. Plain data with a canonical key."""

import hashlib
import json
from dataclasses import asdict, dataclass
from enum import StrEnum


class ConstraintKind(StrEnum):
    """Which language describes the shape. The values are field names of tenon.v1.Constraint."""

    JSON_SCHEMA = "json_schema"
    JSON_OBJECT = "json_object"
    REGEX = "regex"
    CHOICE = "choice"
    EBNF = "ebnf"
    LARK = "lark"
    STRUCTURAL_TAG = "structural_tag_json"


@dataclass(frozen=True, slots=True)
class ConstraintSpec:
    """One constraint. source: its text; a JSON array of strings for CHOICE; "" for JSON_OBJECT."""

    kind: ConstraintKind
    source: str = ""
    backend: str = "auto"
    bounded_whitespace: bool = False
    must_close: bool | None = None
    explain: bool = False

    @property
    def key(self) -> str:
        """Digest that is equal for equal compiled grammars: `explain` does not enter."""
        fields = asdict(self)
        del fields["explain"]
        return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()
