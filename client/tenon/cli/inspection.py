"""The commands that look at what runs: ps and version."""

import json
import platform
from importlib import metadata
from typing import Annotated, Any

import grpc
import typer
from rich.console import Console
from rich.table import Table

import tenon
from tenon.admin.v1 import admin_service_pb2, admin_service_pb2_grpc
from tenon.cli.failures import FAILED, CommandError
from tenon.cli.targets import wrong_port

AdminTarget = Annotated[
    str,
    typer.Option(
        "--admin-target",
        envvar="TENON_ADMIN_TARGET",
        metavar="HOST:PORT",
        help="Admin address of the server.",
    ),
]
_TIMEOUT_SECONDS = 10.0


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command("ps", rich_help_panel="Serve")(show_processes)
    app.command("version")(show_versions)


def show_processes(
    admin_target: AdminTarget = "127.0.0.1:50052",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show what a running server does: models, requests, KV cache."""
    status = _status(admin_target)
    facts = _as_dict(status)
    if as_json:
        print(json.dumps(facts, indent=2))
        return
    table = Table("MODEL", "STATE", "RUNNING", "WAITING", "KV CACHE", "RESTARTS", box=None)
    numbers = [facts["running"], facts["waiting"], facts["kv_cache"], facts["restarts"]]
    for model in facts["models"] or ["-"]:
        table.add_row(model, facts["state"], *(str(number) for number in numbers))
    console = Console()
    console.print(table)
    if facts["requests"]:
        console.print()
        console.print(_request_table(facts["requests"]))


def show_versions(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the versions of Tenon, Python and torch."""
    versions = {
        "tenon": tenon.__version__,
        "tenon-server": installed_version("tenon-server"),
        "python": platform.python_version(),
        "torch": installed_version("torch"),
    }
    if as_json:
        print(json.dumps(versions))
        return
    for name, version in versions.items():
        print(f"{name} {version or 'is not installed'}")


def installed_version(distribution: str) -> str | None:
    """Version of an installed distribution, without importing it."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _status(target: str) -> admin_service_pb2.GetStatusResponse:
    with grpc.insecure_channel(target) as channel:
        stub = admin_service_pb2_grpc.AdminServiceStub(channel)
        try:
            return stub.GetStatus(admin_service_pb2.GetStatusRequest(), timeout=_TIMEOUT_SECONDS)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.UNAVAILABLE:
                raise CommandError(
                    f"no server answers at {target}; start one with tenon serve, "
                    "or set --admin-target"
                ) from None
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                wanted = "the admin port of a Tenon server"
                raise wrong_port(target, wanted, "--admin-target") from None
            raise CommandError(f"{target}: {error.details()}", FAILED) from None


def _as_dict(status: admin_service_pb2.GetStatusResponse) -> dict[str, Any]:
    state = admin_service_pb2.EngineState.Name(status.state).removeprefix("ENGINE_STATE_").lower()
    if state == "loading":
        state = f"loading, {status.load_progress:.0%}"
    share = status.kv_blocks_used / status.kv_blocks_total if status.kv_blocks_total else 0.0
    return {
        "models": list(status.models),
        "state": state,
        "running": status.running,
        "waiting": status.waiting,
        "kv_cache": f"{share:.0%} of {status.kv_blocks_total} blocks",
        "kv_blocks_used": status.kv_blocks_used,
        "kv_blocks_total": status.kv_blocks_total,
        "restarts": status.restarts,
        "requests": [
            {
                "id": request.request_id,
                "state": "running" if request.running else "waiting",
                "prompt_tokens": request.prompt_tokens,
                "output_tokens": request.output_tokens,
                "age": request.age.ToNanoseconds() / 1e9,
            }
            for request in status.requests
        ],
    }


def _request_table(requests: list[dict[str, Any]]) -> Table:
    table = Table("REQUEST", "STATE", "PROMPT", "OUTPUT", "AGE", box=None)
    for request in requests:
        table.add_row(
            request["id"],
            request["state"],
            str(request["prompt_tokens"]),
            str(request["output_tokens"]),
            f"{request['age']:.1f} s",
        )
    return table
