"""Tenon's own inference engine: scheduler, paged KV cache, model, kernels and sampler.

It imports torch, numpy, safetensors and the standard library, nothing else. It knows token ids, not
text; constraints reach it through the protocol in `engine.matcher`, which it declares.
"""

import os

# torch's OpenMP threads spin for milliseconds while they wait for each other. Where another process
# wants their core, each of the hundreds of kernels of a step then waits for the operating system's
# next time slice, and a step takes seconds. With a short spin a step is as fast on a quiet machine
# and merely slower on a busy one. The runtime reads this when torch is loaded, so it stands here.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "500")
