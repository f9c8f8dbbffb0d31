"""Channel options of the server. gRPC ignores keys that it does not know, so a test holds these."""

from tenon.channels import (
    KEEPALIVE_TIMEOUT_MS,
    MAX_REQUEST_BYTES,
    MAX_RESPONSE_BYTES,
    SERVER_MIN_PING_INTERVAL_MS,
)

SERVER_KEEPALIVE_MS = 30_000


def server_channel_options(
    *,
    keepalive_ms: int = SERVER_KEEPALIVE_MS,
    keepalive_timeout_ms: int = KEEPALIVE_TIMEOUT_MS,
    min_ping_interval_ms: int = SERVER_MIN_PING_INTERVAL_MS,
) -> list[tuple[str, int]]:
    """Options for `grpc.aio.server`.

    Admission is our own, so streams per connection are not limited: gRPC would queue them silently.
    """
    return [
        ("grpc.keepalive_time_ms", keepalive_ms),
        ("grpc.keepalive_timeout_ms", keepalive_timeout_ms),
        # A frozen peer whose kernel still acknowledges is found by this timeout only.
        ("grpc.http2.ping_timeout_ms", keepalive_timeout_ms),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", min_ping_interval_ms),
        # Two servers must not share a port without knowing.
        ("grpc.so_reuseport", 0),
        ("grpc.max_receive_message_length", MAX_REQUEST_BYTES),
        ("grpc.max_send_message_length", MAX_RESPONSE_BYTES),
    ]
