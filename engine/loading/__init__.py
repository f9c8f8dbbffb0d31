"""Readers of checkpoints: GGUF files and Hugging Face directories."""
