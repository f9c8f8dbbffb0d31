"""What the service counts for Prometheus, in a registry of its own."""

from dataclasses import dataclass
from threading import Thread
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from service.engine_client import EngineStatus

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
_TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 5.0)


class ServiceMetrics:
    """All metrics of one service. Times in seconds."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._add_engine_gauges()
        self._add_generation_metrics()
        self.requests = Counter(
            "tenon_requests",
            "Calls by method and status code.",
            ("method", "code"),
            registry=self.registry,
        )

    def observe_engine(self, status: EngineStatus) -> None:
        """Takes over what the engine holds now."""
        self.running.set(status.load.running)
        self.waiting.set(status.load.waiting)
        self.kv_used.set(status.load.kv_blocks_used)
        self.kv_total.set(status.load.kv_blocks_total)
        self.step_age.set(status.step_age or 0.0)

    def _add_engine_gauges(self) -> None:
        self.running = self._gauge("tenon_requests_running", "Sequences in the running batch.")
        self.waiting = self._gauge("tenon_requests_waiting", "Sequences that wait for a slot.")
        self.kv_used = self._gauge("tenon_kv_blocks_used", "KV blocks that some request holds.")
        self.kv_total = self._gauge("tenon_kv_blocks_total", "KV blocks in all.")
        self.step_age = self._gauge(
            "tenon_step_age_seconds", "Since the engine finished a step, while it has work."
        )

    def _add_generation_metrics(self) -> None:
        self.time_to_first_token = self._histogram(
            "tenon_time_to_first_token_seconds", "From arrival to the first token.", _SECONDS
        )
        self.inter_token_latency = self._histogram(
            "tenon_inter_token_latency_seconds", "Between tokens of one output.", _TOKEN_SECONDS
        )
        self.request_seconds = self._histogram(
            "tenon_request_seconds", "From arrival to the end of a generation.", _SECONDS
        )
        self.prompt_tokens = self._counter("tenon_prompt_tokens", "Prompt tokens of requests.")
        self.cached_tokens = self._counter(
            "tenon_cached_prompt_tokens", "Prompt tokens served from the prefix cache."
        )
        self.output_tokens = self._counter("tenon_output_tokens", "Output tokens of requests.")

    def _gauge(self, name: str, documentation: str) -> Gauge:
        return Gauge(name, documentation, registry=self.registry)

    def _counter(self, name: str, documentation: str) -> Counter:
        return Counter(name, documentation, registry=self.registry)

    def _histogram(self, name: str, documentation: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(name, documentation, buckets=buckets, registry=self.registry)


@dataclass(frozen=True, slots=True)
class MetricsServer:
    """An HTTP server of metrics in a thread of its own."""

    port: int
    server: WSGIServer
    thread: Thread

    def close(self) -> None:
        """Stops the thread and frees the port."""
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


def serve_metrics(metrics: ServiceMetrics, host: str, port: int) -> MetricsServer:
    """Serves on host:port, 0 for a free one. Raises OSError if the port is taken."""
    server, thread = start_http_server(port, addr=host, registry=metrics.registry)
    return MetricsServer(server.server_port, server, thread)
