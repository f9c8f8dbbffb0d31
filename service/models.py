"""The Model message of a served model."""

from engine.request import SamplingParams
from service import events
from service.options import OutputChoice, SamplingChoice
from service.runtime import ModelRuntime
from service.sampling import resolve_sampling
from tenon.v1 import model_pb2


def model_message(runtime: ModelRuntime) -> model_pb2.Model:
    """Facts of a model. Raises ServiceError while it is not ready."""
    info, assets = runtime.info, runtime.assets
    message = model_pb2.Model(
        name=runtime.name,
        max_model_len=info.max_model_len,
        vocab_size=info.vocab_size,
        end_token_ids=assets.end_token_ids,
        capabilities=_capabilities(runtime),
        fingerprint=info.fingerprint,
        family=info.family,
        num_parameters=info.num_parameters,
        dtype=info.dtype,
        quantization=info.quantization,
        kv_cache_tokens=info.num_blocks * info.block_size,
    )
    message.load_time.FromNanoseconds(round(runtime.load_time * 1e9))
    message.default_sampling.CopyFrom(events.resolved_sampling(_defaults(runtime), 1))
    message.default_sampling.ClearField("seed")  # drawn anew for each request
    return message


def _defaults(runtime: ModelRuntime) -> SamplingParams:
    choice = SamplingChoice()
    return resolve_sampling(choice, OutputChoice(), runtime.assets.sampling_defaults)


def _capabilities(runtime: ModelRuntime) -> model_pb2.Capabilities:
    template = runtime.assets.template
    return model_pb2.Capabilities(
        generate=True,
        chat=template is not None,
        system_role=template is not None and template.capabilities.system_role,
    )
