"""Readers of checkpoints: GGUF files and Hugging Face directories."""

from engine.loading.opening import open_checkpoint
from engine.loading.source import CheckpointError, CheckpointSource, SamplingDefaults

__all__ = ["CheckpointError", "CheckpointSource", "SamplingDefaults", "open_checkpoint"]
