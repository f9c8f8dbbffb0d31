"""All storage types decode to exactly what the gguf package decodes."""

import gguf
import numpy as np
import pytest
import torch

from engine.loading.quants import STORAGE_TYPES, decode_tensor

NUM_BLOCKS = 5000  # several groups of the decoder, and a part of one


@pytest.mark.parametrize("number", STORAGE_TYPES, ids=lambda number: STORAGE_TYPES[number].name)
def test_random_blocks_decode_as_the_gguf_package_does(number: int) -> None:
    kind, oracle = STORAGE_TYPES[number], gguf.GGMLQuantizationType(number)
    assert (kind.block_values, kind.block_bytes) == gguf.GGML_QUANT_SIZES[oracle]
    assert kind.name == oracle.name
    random = np.random.default_rng(number)
    stored = random.integers(0, 256, (NUM_BLOCKS, kind.block_bytes), dtype=np.uint8)
    with np.errstate(all="ignore"):
        expected = gguf.dequantize(stored, oracle).reshape(-1)
    values = decode_tensor(kind, stored.reshape(-1), (NUM_BLOCKS, kind.block_values))
    decoded = values.float().numpy().reshape(-1)
    np.testing.assert_array_equal(decoded, expected.astype(np.float32))


@pytest.mark.parametrize("name", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_quantised_values_come_back_close(name: str) -> None:
    oracle = gguf.GGMLQuantizationType[name]
    values = torch.randn(8, 64, generator=torch.Generator().manual_seed(0))
    stored = gguf.quantize(values.numpy(), oracle).reshape(-1)
    decoded = decode_tensor(STORAGE_TYPES[oracle.value], stored, (8, 64))
    assert (decoded - values).abs().max() < 0.5
