"""What the supervisor shows: how far loading is, and then where everything listens."""

import json
import shlex
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from tenon.cli.values import format_count, join_address


class LoadingDisplay:
    """A bar of the loading stages on a terminal, a line a stage elsewhere. A context manager."""

    def __init__(self, console: Console, model: str) -> None:
        self._console = console
        self._model = model
        self._stage = ""
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task(f"starting {model}", total=1.0)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Takes the bar away; harmless when it is gone."""
        self._progress.stop()

    def update(self, stage: str, progress: float) -> None:
        """Shows a stage and its progress from 0 to 1."""
        description = f"{self._model}: {stage}"
        if stage != self._stage and not self._console.is_terminal:
            self._console.print(description, markup=False, soft_wrap=True)
        self._stage = stage
        self._progress.update(self._task, description=description, completed=progress)


def show_banner(console: Console, host: str, name: str, facts: dict[str, Any]) -> None:
    """Prints what runs where. facts: what the events of both children said."""
    table = Table.grid(padding=(0, 2))
    for label, value in banner_rows(host, name, facts):
        table.add_row(f"[bold]{label}[/bold]", value)
    console.print()
    console.print(table)
    console.print()
    # Printed as it is, without wrapping: it is there to be copied.
    console.print(curl_line(host, facts["http_port"], name), markup=False, soft_wrap=True)
    console.print()


def banner_rows(host: str, name: str, facts: dict[str, Any]) -> list[tuple[str, str]]:
    """The lines of the banner. Facts that a child did not tell are left out."""
    family, parameters = facts.get("family"), facts.get("num_parameters")
    details = [family, f"{format_count(parameters)} parameters" if parameters else None]
    known = ", ".join(str(detail) for detail in details if detail)
    rows = [("model", f"{name} ({known})" if known else name)]
    precision = [facts.get("dtype"), facts.get("quantization")]
    if all(precision):
        rows.append(("precision", f"{precision[0]}, stored as {precision[1]}"))
    if "max_model_len" in facts:
        rows.append(("context", f"{facts['max_model_len']:,} tokens"))
    if "kv_cache_tokens" in facts:
        rows.append(("KV cache", f"{facts['kv_cache_tokens']:,} tokens"))
    if "load_seconds" in facts:
        rows.append(("loaded in", f"{facts['load_seconds']:.1f} s"))
    rows.append(("REST", f"http://{join_address(host, facts['http_port'])}/v1"))
    for label, key in (("gRPC", "grpc_port"), ("admin", "admin_port")):
        if facts.get(key):
            rows.append((label, join_address(host, facts[key])))
    if facts.get("metrics_port"):
        rows.append(("metrics", f"http://{join_address(host, facts['metrics_port'])}/metrics"))
    return rows


def curl_line(host: str, http_port: int, name: str) -> str:
    """A command that asks the server something."""
    question = {"role": "user", "content": "What is the capital of France?"}
    body = json.dumps({"model": name, "messages": [question], "temperature": 0, "max_tokens": 64})
    url = f"http://{join_address(host, http_port)}/v1/chat/completions"
    return f"curl {url} -H 'Content-Type: application/json' -d {shlex.quote(body)}"
