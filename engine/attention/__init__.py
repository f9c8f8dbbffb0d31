"""Attention backends: each owns the layout of its KV cache. `reference` is the oracle of all."""
