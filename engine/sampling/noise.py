"""Random numbers that are a pure function of (seed, position, token): Philox4x32-10.

So a draw depends neither on the rest of the batch nor on what was drawn before.
"""

import numpy as np
import numpy.typing as npt

UInt64Array = npt.NDArray[np.uint64]
Float64Array = npt.NDArray[np.float64]

_LOW = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)
_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_KEY_STEPS = (np.uint64(0x9E3779B9), np.uint64(0xBB67AE85))
_ROUNDS = 10


def philox(counter: UInt64Array, key: UInt64Array) -> UInt64Array:
    """Philox4x32-10 of counter [4, n] and key [2, n], 32-bit words in uint64: [4, n]."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        product0, product2 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            (product2 >> _SHIFT) ^ c1 ^ k0,
            product2 & _LOW,
            (product0 >> _SHIFT) ^ c3 ^ k1,
            product0 & _LOW,
        )
        k0, k1 = (k0 + _KEY_STEPS[0]) & _LOW, (k1 + _KEY_STEPS[1]) & _LOW
    return np.stack((c0, c1, c2, c3))


def uniform(
    seeds: UInt64Array, positions: UInt64Array, tokens: UInt64Array, stream: int
) -> Float64Array:
    """Uniform numbers strictly between 0 and 1, [n], from arrays of n.

    stream: separates draws that serve different purposes for the same token.
    """
    counter = np.stack((tokens, positions, np.full_like(tokens, stream), np.zeros_like(tokens)))
    words = philox(counter, np.stack((seeds & _LOW, seeds >> _SHIFT)))
    bits = (words[0] << np.uint64(20)) | (words[1] >> np.uint64(12))  # 52 bits
    numbers: Float64Array = (bits.astype(np.float64) + 0.5) * 2.0**-52
    return numbers
