"""From tenon.v1.Constraint to `ConstraintSpec`. Whether it can be enforced is the engine's word."""

import json
from collections.abc import Mapping

from grammar.spec import ConstraintKind, ConstraintSpec
from service.errors import invalid, unsupported
from service.validation import check_enum, check_length, check_oneof
from tenon.v1 import constraint_pb2

MAX_SOURCE_BYTES = 256 * 1024
MAX_CHOICES = 10_000

BACKENDS: Mapping[int, str] = {
    constraint_pb2.CONSTRAINT_BACKEND_UNSPECIFIED: "auto",
    constraint_pb2.CONSTRAINT_BACKEND_XGRAMMAR: "xgrammar",
    constraint_pb2.CONSTRAINT_BACKEND_LLGUIDANCE: "llguidance",
    constraint_pb2.CONSTRAINT_BACKEND_OUTLINES: "outlines",
}


def translate_constraint(constraint: constraint_pb2.Constraint, path: str) -> ConstraintSpec:
    """Validates a constraint's own fields. Raises ServiceError."""
    kind = ConstraintKind(check_oneof(path, constraint, "kind"))
    check_enum(f"{path}.backend", constraint.backend, constraint_pb2.ConstraintBackend.values())
    check_enum(f"{path}.whitespace", constraint.whitespace, constraint_pb2.Whitespace.values())
    if constraint.explain:
        raise unsupported(f"{path}.explain")
    return ConstraintSpec(
        kind=kind,
        source=_source(constraint, kind, f"{path}.{kind}"),
        backend=BACKENDS[constraint.backend],
        bounded_whitespace=constraint.whitespace == constraint_pb2.WHITESPACE_BOUNDED,
        must_close=constraint.must_close if constraint.HasField("must_close") else None,
    )


def _source(constraint: constraint_pb2.Constraint, kind: ConstraintKind, field: str) -> str:
    if kind is ConstraintKind.JSON_OBJECT:
        return ""
    if kind is ConstraintKind.CHOICE:
        options = list(constraint.choice.options)
        check_length(f"{field}.options", options, 1, MAX_CHOICES, "entries")
        source = json.dumps(options, ensure_ascii=False)
    else:
        source = getattr(constraint, kind)
        check_length(field, source, 1, MAX_SOURCE_BYTES, "characters")
    if len(source.encode()) > MAX_SOURCE_BYTES:
        raise invalid(field, f"must be at most {MAX_SOURCE_BYTES} bytes long")
    return source
