"""What the gateway counts, in a registry of its own."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from gateway.exchange import Exchange

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class GatewayMetrics:
    """Requests, requests in flight, and the times that clients see."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self._requests = Counter(
            "tenon_gateway_requests",
            "Requests by route, status and error code.",
            ["route", "status", "code"],
            registry=registry,
        )
        self._in_flight = Gauge(
            "tenon_gateway_requests_in_flight", "Requests being served.", registry=registry
        )
        self._first_byte = Histogram(
            "tenon_gateway_time_to_first_byte_seconds",
            "From the request's headers to the first bytes of the answer's body.",
            ["route"],
            registry=registry,
            buckets=SECONDS,
        )

    def begin(self) -> None:
        """A request has arrived."""
        self._in_flight.inc()

    def end(self, exchange: Exchange) -> None:
        """A request is answered, or its client has gone."""
        self._in_flight.dec()
        status, code = str(exchange.status or 499), exchange.error_code or ""
        self._requests.labels(exchange.route, status, code).inc()
        if exchange.first_byte_at is not None:
            seconds = exchange.first_byte_at - exchange.started_at
            self._first_byte.labels(exchange.route).observe(seconds)
