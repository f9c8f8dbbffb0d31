"""Turns a function that takes a dataclass of options into a command, with --config."""

import dataclasses
import inspect
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from tenon.cli.failures import CommandError

_Options = TypeVar("_Options")


def takes_options(
    kind: type[_Options],
) -> Callable[[Callable[[_Options], None]], Callable[..., None]]:
    """Decorates a function of one dataclass `kind`: its fields become the command's parameters."""

    def decorate(function: Callable[[_Options], None]) -> Callable[..., None]:
        def command(**values: Any) -> None:
            values.pop("config")
            function(kind(**values))

        parameters = [_parameter(field) for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
        parameters.append(_CONFIG_PARAMETER)
        command.__name__ = function.__name__
        command.__doc__ = function.__doc__
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {item.name: item.annotation for item in parameters}
        return command

    return decorate


def _parameter(field: dataclasses.Field[Any]) -> inspect.Parameter:
    return inspect.Parameter(
        field.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=field.default,
        annotation=field.type,
    )


def read_config(context: typer.Context, path: Path | None) -> Path | None:
    """Makes the file's values the defaults of the command. Raises CommandError."""
    if path is None:
        return None
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CommandError(f"--config {path}: {(error.strerror or str(error)).lower()}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise CommandError(f"--config {path} is not TOML: {error}") from None
    known = {item.name for item in context.command.params if item.name} - {"config", "help"}
    unknown = sorted(key for key in values if key.replace("-", "_") not in known)
    if unknown:
        raise CommandError(
            f"--config {path}: unknown keys {', '.join(unknown)}; "
            f"known are {', '.join(sorted(known))}"
        )
    for key, value in values.items():
        if not isinstance(value, str | int | float) or isinstance(value, bool):
            raise CommandError(f"--config {path}: {key} must be a text or a number")
    # As text, so that a file is checked by the same rules as a flag.
    defaults = {key.replace("-", "_"): str(value) for key, value in values.items()}
    context.default_map = {**(context.default_map or {}), **defaults}
    return path


_CONFIG_PARAMETER = inspect.Parameter(
    "config",
    inspect.Parameter.KEYWORD_ONLY,
    default=None,
    annotation=Annotated[
        Path | None,
        typer.Option(
            "--config",
            envvar="TENON_CONFIG",
            help="TOML file with any of these options, for example http_port = 8080.",
            metavar="FILE",
            is_eager=True,
            callback=read_config,
            rich_help_panel="Process",
        ),
    ],
)
