"""The commands of `tenon`, and how every failure of theirs reaches the user."""

import sys
from collections.abc import Sequence

import typer

from tenon.cli import doctor, generation, inspection, models, servers
from tenon.cli.failures import BAD_INPUT, FAILED, INTERRUPTED, CommandError
from tenon.errors import InvalidRequest, NotFound, PermissionDenied, TenonError, Unavailable
from tenon.models.registry import RegistryError
from tenon.models.resolve import ModelNotFound
from tenon.models.wheels import FetchError

# The base of all errors that typer raises about arguments; it has no public name of its own.
_UsageError: type[Exception] = typer.BadParameter.__mro__[2]
# What a user can put right: another value, another model, a server that runs.
_USER_ERRORS = (
    CommandError,
    ModelNotFound,
    FetchError,
    RegistryError,
    InvalidRequest,
    NotFound,
    PermissionDenied,
    Unavailable,
)


def build_app() -> typer.Typer:
    """The application with all commands."""
    app = typer.Typer(
        name="tenon",
        help="Serves language models, and talks to servers that do.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    for module in (servers, generation, models, inspection, doctor):
        module.register(app)
    return app


def run(arguments: Sequence[str]) -> int:
    """Runs one command; returns its exit code. Errors become one line on stderr."""
    try:
        result = typer.main.get_command(build_app()).main(
            list(arguments), prog_name="tenon", standalone_mode=False
        )
    except _USER_ERRORS as error:
        return _tell(error, getattr(error, "exit_code", 2))
    except TenonError as error:
        return _tell(error, FAILED)
    except typer.Exit as error:
        return error.exit_code
    except (typer.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output is gone; Python must not try to flush it at exit.
        sys.stdout = None
        return FAILED
    except UnicodeEncodeError as error:
        return _tell_encoding(error)
    except _UsageError as error:
        return _tell_usage(error)
    return result if isinstance(result, int) else 0


def _tell(error: Exception, exit_code: int) -> int:
    message = " ".join(str(error).split())
    print(f"tenon: {message}", file=sys.stderr)
    return exit_code


def _tell_encoding(error: UnicodeEncodeError) -> int:
    """Bytes that were typed and are no text, or an answer that standard output cannot write."""
    if error.encoding == "utf-8":
        return _tell(ValueError("what was typed or piped in is not UTF-8 text"), BAD_INPUT)
    message = f"standard output cannot write all text in {error.encoding}; set PYTHONUTF8=1"
    return _tell(ValueError(message), BAD_INPUT)


def _tell_usage(error: BaseException) -> int:
    message = getattr(error, "format_message", lambda: str(error))()
    context = getattr(error, "ctx", None)
    hint = f" (see {context.command_path} --help)" if context is not None else ""
    if type(error).__name__ == "NoArgsIsHelpError":
        print(message)
        return 2
    return _tell(ValueError(message.rstrip(".") + hint), getattr(error, "exit_code", 2))
