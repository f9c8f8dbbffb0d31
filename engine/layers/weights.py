"""Streams a checkpoint's tensors into a decoder's weights: checks, casts, merges, packs.

Strict: every expected tensor once, with its shape, and none besides.
"""

from collections.abc import Callable, Iterable

import torch

from engine.layers.linear import Linear, make_linear
from engine.loading.expected import expected_tensors
from engine.loading.source import CheckpointError
from engine.models.config import ModelConfig
from engine.models.decoder import DecoderLayer, DecoderWeights


def assemble(
    config: ModelConfig,
    tensors: Iterable[tuple[str, torch.Tensor]],
    dtype: torch.dtype,
    device: torch.device,
    progress: Callable[[float], None],
) -> DecoderWeights:
    """Builds the weights in one pass; each layer is packed as soon as it is complete.

    progress gets the share of tensors that were taken. Raises CheckpointError, naming the tensor,
    for one that is missing, unexpected, repeated or of a wrong shape.
    """
    assembly = _Assembly(config, dtype, device)
    for count, (name, tensor) in enumerate(tensors, 1):
        assembly.take(name, tensor)
        progress(count / assembly.num_expected)
    return assembly.finish()


class _Assembly:
    def __init__(self, config: ModelConfig, dtype: torch.dtype, device: torch.device) -> None:
        self._config = config
        self._dtype = dtype
        self._device = device
        # Logits near 20 in bfloat16 have steps of 0.125: ties that the model does not mean. On a
        # CPU a float32 head costs a few milliseconds of a step.
        self._head_dtype = torch.float32 if device.type == "cpu" else dtype
        self._pending = dict(expected_tensors(config))
        self.num_expected = len(self._pending)
        self._known = frozenset(self._pending)
        self._parts: dict[str, torch.Tensor] = {}
        self._layers: dict[int, DecoderLayer] = {}
        per_layer = sum(name.startswith("layers.0.") for name in self._known)
        self._missing_in_layer = dict.fromkeys(range(config.num_layers), per_layer)

    def take(self, name: str, tensor: torch.Tensor) -> None:
        if name not in self._pending:
            problem = "appears twice" if name in self._known else "is not expected"
            raise CheckpointError(f"tensor {name} {problem}")
        shape = self._pending.pop(name)
        if tuple(tensor.shape) != shape:
            found = list(tensor.shape)
            raise CheckpointError(f"tensor {name} has shape {found}, expected {list(shape)}")
        # A copy, since the tensor may be a view of a file that is closed before the model runs.
        self._parts[name] = tensor.to(self._device, self._dtype_of(name), copy=True)
        if name.startswith("layers."):
            layer = int(name.split(".")[1])
            self._missing_in_layer[layer] -= 1
            if self._missing_in_layer[layer] == 0:
                self._layers[layer] = self._make_layer(f"layers.{layer}.")

    def finish(self) -> DecoderWeights:
        if self._pending:
            names = sorted(self._pending)
            raise CheckpointError(f"tensor {names[0]} is missing ({len(names)} in all)")
        embed = self._parts["embed.weight"].contiguous()
        head = embed if self._config.tied_head else self._parts["head.weight"]
        return DecoderWeights(
            embed=embed.to(self._dtype),
            layers=[self._layers[index] for index in range(self._config.num_layers)],
            norm=self._parts["norm.weight"],
            head=make_linear(head.to(self._head_dtype)),
            head_dtype=self._head_dtype,
        )

    def _dtype_of(self, name: str) -> torch.dtype:
        """Norms stay exact, and so does what becomes the head, see _head_dtype."""
        if name.endswith("norm.weight"):
            return torch.float32
        is_head = name == ("embed.weight" if self._config.tied_head else "head.weight")
        return self._head_dtype if is_head else self._dtype

    def _make_layer(self, prefix: str) -> DecoderLayer:
        qkv = torch.cat([self._parts.pop(f"{prefix}{name}.weight") for name in "qkv"])
        bias = None
        if self._config.qkv_bias:
            bias = torch.cat([self._parts.pop(f"{prefix}{name}.bias") for name in "qkv"])
        return DecoderLayer(
            attn_norm=self._parts.pop(f"{prefix}attn_norm.weight"),
            qkv=make_linear(qkv, bias),
            o=self._take_linear(f"{prefix}o.weight"),
            ffn_norm=self._parts.pop(f"{prefix}ffn_norm.weight"),
            gate=self._take_linear(f"{prefix}gate.weight"),
            up=self._take_linear(f"{prefix}up.weight"),
            down=self._take_linear(f"{prefix}down.weight"),
        )

    def _take_linear(self, name: str) -> Linear:
        return make_linear(self._parts.pop(name))
