"""How commands reach a running server."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import grpc
import typer

from tenon.aio import DEFAULT_TARGET
from tenon.cli.failures import CommandError
from tenon.errors import TenonError, Unavailable
from tenon.sync import Client

Target = Annotated[
    str | None,
    typer.Option(
        "--target",
        envvar="TENON_TARGET",
        metavar="HOST:PORT",
        help=f"gRPC address of the server; {DEFAULT_TARGET} unless set.",
    ),
]


@contextmanager
def connect(target: str | None) -> Iterator[Client]:
    """A client of the server; says how to start one where none answers."""
    address = target or DEFAULT_TARGET
    with Client(address, timeout=None) as client:
        try:
            yield client
        except Unavailable as error:
            raise unreachable(address, error) from None
        except TenonError as error:
            if error.code is grpc.StatusCode.UNIMPLEMENTED and not error.reason:
                raise wrong_port(address, "the gRPC port of a Tenon server", "--target") from None
            raise


def wrong_port(address: str, wanted: str, flag: str) -> CommandError:
    """What answers is a gRPC server, but knows none of our methods."""
    return CommandError(f"{address} is not {wanted}; set {flag} to one that tenon serve printed")


def unreachable(address: str, error: Unavailable) -> Exception:
    """The error to show: the server's own words if one answered, else how to start one."""
    if error.reason:
        return error
    return CommandError(
        f"no server answers at {address}; start one with tenon serve, or set --target"
    )
