"""Client of the Tenon LLM inference service."""

__version__ = "0.1.0"
