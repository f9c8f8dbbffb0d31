"""Channel options of every Tenon client, and the numbers that both ends of a channel must agree on.

gRPC ignores option keys that it does not know, so all of them are here and are tested.
"""

import json

# The server refuses pings that come faster than its minimum, so the client's interval is longer.
CLIENT_KEEPALIVE_MS = 30_000
SERVER_MIN_PING_INTERVAL_MS = 10_000
KEEPALIVE_TIMEOUT_MS = 10_000
MAX_REQUEST_BYTES = 16 * 1024 * 1024
MAX_RESPONSE_BYTES = 32 * 1024 * 1024

SERVICE = "tenon.v1.GenerationService"
READ_METHODS = (
    "CheckConstraint",
    "RenderChat",
    "Tokenize",
    "Detokenize",
    "GetModel",
    "ListModels",
)


def service_config() -> str:
    """Retries that are safe: reads, and Generate, which gRPC retries only before its first message.

    A server that sheds load sends grpc-retry-pushback-ms, which the channel obeys.
    """
    return json.dumps(
        {
            "methodConfig": [
                _retrying([{"service": SERVICE, "method": name} for name in READ_METHODS], 4),
                _retrying([{"service": SERVICE, "method": "Generate"}], 3),
            ],
            "retryThrottling": {"maxTokens": 10, "tokenRatio": 0.1},
        }
    )


def client_channel_options() -> list[tuple[str, str | int]]:
    """Options for `grpc.aio.insecure_channel`."""
    return [
        ("grpc.service_config", service_config()),
        ("grpc.keepalive_time_ms", CLIENT_KEEPALIVE_MS),
        ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
        ("grpc.http2.ping_timeout_ms", KEEPALIVE_TIMEOUT_MS),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.max_send_message_length", MAX_REQUEST_BYTES),
        ("grpc.max_receive_message_length", MAX_RESPONSE_BYTES),
    ]


def _retrying(names: list[dict[str, str]], max_attempts: int) -> dict[str, object]:
    return {
        "name": names,
        "retryPolicy": {
            "maxAttempts": max_attempts,
            "initialBackoff": "0.2s",
            "maxBackoff": "2s",
            "backoffMultiplier": 2,
            "retryableStatusCodes": ["UNAVAILABLE"],
        },
    }
