"""`response_format` and the extension `structured_outputs` as a constraint of the service."""

import re
from typing import Any

import msgspec

from gateway import errors
from gateway.fields import Fields, check_string
from tenon.v1 import constraint_pb2

MAX_CHOICES = 1000
SCHEMA_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
BACKENDS = {
    "auto": constraint_pb2.CONSTRAINT_BACKEND_UNSPECIFIED,
    "xgrammar": constraint_pb2.CONSTRAINT_BACKEND_XGRAMMAR,
    "llguidance": constraint_pb2.CONSTRAINT_BACKEND_LLGUIDANCE,
    "outlines": constraint_pb2.CONSTRAINT_BACKEND_OUTLINES,
}
WHITESPACE = {
    "compact": constraint_pb2.WHITESPACE_COMPACT,
    "bounded": constraint_pb2.WHITESPACE_BOUNDED,
}
KINDS = ("json", "json_object", "regex", "choice", "grammar", "lark", "structural_tag")


def read_constraint(fields: Fields) -> constraint_pb2.Constraint | None:
    """The request's constraint, None for free text."""
    by_format = _read_response_format(fields)
    by_extension = _read_structured_outputs(fields)
    if by_format is not None and by_extension is not None:
        reason = "it cannot be combined with 'response_format'"
        raise errors.invalid_value("structured_outputs", reason)
    return by_format if by_format is not None else by_extension


def _read_response_format(fields: Fields) -> constraint_pb2.Constraint | None:
    response_format = fields.object("response_format")
    if response_format is None:
        return None
    path = response_format.path_of("type")
    kind = check_string(
        response_format.require("type"), path, choices=("text", "json_object", "json_schema")
    )
    constraint = None
    if kind == "json_object":
        constraint = constraint_pb2.Constraint(json_object=constraint_pb2.JsonObject())
    elif kind == "json_schema":
        response_format.require("json_schema")
        constraint = _read_json_schema(response_format.object("json_schema"))
    response_format.check_unknown()
    return constraint


def _read_json_schema(fields: Fields | None) -> constraint_pb2.Constraint:
    assert fields is not None
    name = check_string(fields.require("name"), fields.path_of("name"))
    if not SCHEMA_NAME.fullmatch(name):
        reason = "expected 1 to 64 letters, digits, underscores or dashes"
        raise errors.invalid_value(fields.path_of("name"), reason)
    fields.string("description")
    fields.boolean("strict")
    schema = fields.value("schema")
    if schema is None:
        constraint = constraint_pb2.Constraint(json_object=constraint_pb2.JsonObject())
    else:
        constraint = constraint_pb2.Constraint(
            json_schema=schema_text(schema, fields.path_of("schema"))
        )
    fields.check_unknown()
    return constraint


def schema_text(schema: Any, path: str) -> str:
    """A JSON Schema as text, its keys in the order in which they were sent."""
    if not isinstance(schema, dict | bool):
        raise errors.invalid_type(path, "an object", schema)
    return msgspec.json.encode(schema).decode()


def _read_structured_outputs(fields: Fields) -> constraint_pb2.Constraint | None:
    outputs = fields.object("structured_outputs")
    if outputs is None:
        return None
    given = [kind for kind in KINDS if outputs.has(kind)]
    if len(given) != 1:
        reason = f"expected exactly one of {', '.join(KINDS)}, got {len(given)}"
        raise errors.invalid_value("structured_outputs", reason)
    constraint = _read_kind(outputs, given[0])
    backend = outputs.string("backend", choices=tuple(BACKENDS))
    whitespace = outputs.string("whitespace", choices=tuple(WHITESPACE))
    if backend is not None:
        constraint.backend = BACKENDS[backend]
    if whitespace is not None:
        constraint.whitespace = WHITESPACE[whitespace]
    outputs.check_unknown()
    return constraint


def _read_kind(outputs: Fields, kind: str) -> constraint_pb2.Constraint:
    path = outputs.path_of(kind)
    value = outputs.value(kind)
    match kind:
        case "json":
            text = value if isinstance(value, str) else schema_text(value, path)
            return constraint_pb2.Constraint(json_schema=text)
        case "json_object":
            if value is not True:
                raise errors.invalid_value(path, "expected true")
            return constraint_pb2.Constraint(json_object=constraint_pb2.JsonObject())
        case "choice":
            return constraint_pb2.Constraint(choice=_read_choice(outputs))
        case "structural_tag":
            text = value if isinstance(value, str) else schema_text(value, path)
            return constraint_pb2.Constraint(structural_tag_json=text)
        case "grammar":
            return constraint_pb2.Constraint(ebnf=check_string(value, path))
        case "lark":
            return constraint_pb2.Constraint(lark=check_string(value, path))
    return constraint_pb2.Constraint(regex=check_string(value, path))


def _read_choice(outputs: Fields) -> constraint_pb2.Choice:
    options = outputs.array("choice", MAX_CHOICES) or []
    path = outputs.path_of("choice")
    if not options:
        raise errors.empty_array(path)
    return constraint_pb2.Choice(
        options=[check_string(item, f"{path}[{i}]") for i, item in enumerate(options)]
    )
