"""Constraints: what a request may ask for, and how it is enforced. Knows nothing of the engine."""
