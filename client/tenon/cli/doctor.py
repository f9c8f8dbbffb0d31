"""The command doctor: looks for what would keep Tenon from working, and says what to do."""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from tenon.cli.failures import FAILED

if TYPE_CHECKING:
    from tenon.cli.checks import Finding

_MARKS = {"ok": "[green]ok[/green]  ", "note": "[yellow]note[/yellow]", "wrong": "[red]wrong[/red]"}


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command()(doctor)


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check Python, torch, CPU, memory, disk, ports, models and packages."""
    from tenon.cli.checks import ALL_CHECKS

    findings = [finding for check in ALL_CHECKS for finding in check()]
    if as_json:
        print(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        _print(findings)
    if any(finding.level == "wrong" for finding in findings):
        raise typer.Exit(FAILED)


def _print(findings: "list[Finding]") -> None:
    console = Console()
    for finding in findings:
        console.print(_MARKS[finding.level], end=" ")
        advice = f"; {finding.advice}" if finding.advice else ""
        console.print(
            f"{finding.subject}: {finding.detail}{advice}",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
