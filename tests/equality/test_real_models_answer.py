"""Real models of other storage types and families answer sensibly. `make models` fetches them."""

from pathlib import Path

import pytest

from engine.build import build_engine
from engine.config import EngineConfig
from engine.request import RequestSpec, SamplingParams
from service.chat_template import load_chat_template
from service.tokenizer import load_tokenizer


def answer(path: Path, question: str) -> str:
    """The greedy answer of at most 32 tokens."""
    tokenizer = load_tokenizer(str(path))
    template = load_chat_template(tokenizer)
    assert template is not None
    text = template.render([{"role": "user", "content": question}], None)
    prompt = tuple(tokenizer.encode(text, add_special_tokens=False, parse_special=True))
    config = EngineConfig(str(path), device="cpu", max_model_len=512, max_num_seqs=1)
    engine = build_engine(config, lambda stage, share: None)
    end_ids = tuple(tokenizer.end_ids)
    engine.add(RequestSpec("r", prompt, SamplingParams(temperature=0), 32, stop_token_ids=end_ids))
    ids: list[int] = []
    while engine.has_work:
        for output in engine.step():
            ids.extend(output.token_ids)
    return tokenizer.decode(ids, skip_special=True)


@pytest.mark.model
@pytest.mark.acceptance
@pytest.mark.timeout(300)
def test_qwen_coder_in_k_quants_knows_the_capital_of_france(qwen_coder_path: Path) -> None:
    said = answer(qwen_coder_path, "What is the capital of France?")
    print(f"qwen2.5-coder-0.5b Q4_K_M: {said!r}")
    assert "Paris" in said


@pytest.mark.model
@pytest.mark.acceptance
@pytest.mark.timeout(300)
def test_smollm2_in_bfloat16_answers_as_in_float32(smollm2_path: Path) -> None:
    said = answer(smollm2_path, "What is the capital of France?")
    print(f"smollm2 Q4_1: {said!r}")
    assert said == "The capital of France is Paris."
