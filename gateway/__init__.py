"""The OpenAI-compatible REST gateway: encoders over the event stream of the gRPC service."""
