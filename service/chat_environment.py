"""The jinja sandbox that chat templates run in, and the errors that they may end with."""

import json
import traceback
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_RENDERED_CHARACTERS = 4 * 1024 * 1024
# A template may put a whole conversation into its words.
MAX_REFUSAL_CHARACTERS = 1000


class ChatTemplateError(ValueError):
    """A template is broken or does not fit the conversation. Names the line, never internals."""


class ChatTemplateRefused(ChatTemplateError):
    """The template itself refuses the conversation. The message is the template's own."""


class TemplateRaised(Exception):
    """What `raise_exception` in a template raises."""


class _GenerationTag(Extension):
    """Tolerates {% generation %}...{% endgeneration %}, which marks text for training only."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class _ChatEnvironment(ImmutableSandboxedEnvironment):
    """Also bounds repetition, so that one expression cannot ask for gigabytes."""

    intercepted_binops = frozenset({"*", "**"})

    def call_binop(
        self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any
    ) -> Any:
        if operator == "**" or _repeated_length(left, right) > MAX_RENDERED_CHARACTERS:
            raise SecurityError(f"{operator} is not allowed with these values")
        return super().call_binop(context, operator, left, right)


def compile_template(source: str) -> jinja2.Template:
    """Compiles a chat template as its publishers expect. Raises ChatTemplateError with the line."""
    environment = _ChatEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    try:
        return environment.from_string(source)
    except jinja2.TemplateSyntaxError as error:
        raise ChatTemplateError(
            f"the chat template is not valid jinja: line {error.lineno}: {error.message}"
        ) from error


def run_template(template: jinja2.Template, variables: dict[str, Any]) -> str:
    """Renders. Raises ChatTemplateRefused or ChatTemplateError."""
    try:
        return _bounded_join(template.generate(**variables))
    except TemplateRaised as error:
        raise ChatTemplateRefused(str(error)) from error
    except ChatTemplateError:
        raise
    except jinja2.TemplateError as error:
        raise ChatTemplateError(
            f"the chat template failed{_at_line(error)}: {error.message}"
        ) from error
    except Exception as error:  # a template may fail in any way that Python can
        raise ChatTemplateError(
            f"the chat template failed{_at_line(error)}: the conversation does not fit it"
        ) from error


def _bounded_join(pieces: Any) -> str:
    kept: list[str] = []
    total = 0
    for piece in pieces:
        total += len(piece)
        if total > MAX_RENDERED_CHARACTERS:
            raise ChatTemplateError(
                f"the rendered conversation exceeds {MAX_RENDERED_CHARACTERS} characters"
            )
        kept.append(piece)
    return "".join(kept)


def _at_line(error: Exception) -> str:
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename == "<template>"
    ]
    return f" at line {lines[-1]}" if lines else ""


def _repeated_length(left: Any, right: Any) -> int:
    for sequence, count in ((left, right), (right, left)):
        if isinstance(sequence, str | list | tuple) and isinstance(count, int):
            return len(sequence) * count
    return 0


def _raise_exception(message: str) -> None:
    raise TemplateRaised(str(message)[:MAX_REFUSAL_CHARACTERS])


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Unlike jinja's own, escapes nothing for HTML: models were trained on plain JSON."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )
