"""Tenon's own inference engine: scheduler, paged KV cache, model, kernels and sampler.

It imports torch, numpy, safetensors and the standard library, nothing else. It knows token ids, not
text; constraints reach it through the protocol in `engine.matcher`, which it declares.
"""
