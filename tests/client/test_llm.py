"""The engine without a server: tenon.LLM over tiny random checkpoints and the default model."""

import sys
from pathlib import Path

import pytest

import tenon
from tests.support.checkpoints import make_tiny_llama


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> "tenon.LLM":
    directory = make_tiny_llama(tmp_path_factory.mktemp("model"))
    with tenon.LLM(str(directory), dtype="float32", num_threads=1, max_num_seqs=8) as made:
        yield made


def test_many_prompts_give_their_results_in_order(llm: "tenon.LLM") -> None:
    prompts = ["Hello", [5, 6, 7], "Another one"]
    results = llm.generate(prompts, temperature=0, max_tokens=4)
    assert [result.prompt for result in results] == prompts
    alone = [llm.generate(prompt, temperature=0, max_tokens=4)[0] for prompt in prompts]
    assert [result.outputs[0].token_ids for result in results] == [
        result.outputs[0].token_ids for result in alone
    ]
    assert results[1].usage.prompt_tokens == 3
    assert all(1 <= result.usage.output_tokens <= 4 for result in results)


def test_more_prompts_than_slots_wait_for_each_other(llm: "tenon.LLM") -> None:
    results = llm.generate(["x"] * 20, temperature=0, max_tokens=2)
    assert len({result.outputs[0].token_ids for result in results}) == 1


def test_a_seed_repeats_several_outputs(llm: "tenon.LLM") -> None:
    first, second = (
        llm.generate("Hi", seed=3, n=2, max_tokens=8, temperature=1)[0].outputs for _ in range(2)
    )
    assert first == second
    assert len(first) == 2
    assert first[0].token_ids != first[1].token_ids


def test_a_refused_value_names_its_field_and_the_model_goes_on(llm: "tenon.LLM") -> None:
    with pytest.raises(Exception, match="temperature"):
        llm.generate(["a", "b"], temperature=-1, max_tokens=2)
    assert llm.generate("a", max_tokens=1)[0].usage.output_tokens == 1


def test_a_closed_llm_says_so_and_may_be_closed_again(tmp_path: Path) -> None:
    made = tenon.LLM(str(make_tiny_llama(tmp_path)), dtype="float32", num_threads=1)
    made.close()
    made.close()
    with pytest.raises(RuntimeError, match="closed"):
        made.generate("x")


def test_a_model_that_cannot_be_loaded_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "broken.gguf").write_bytes(b"GGUF")
    with pytest.raises(ValueError, match=r"broken\.gguf"):
        tenon.LLM(str(tmp_path / "broken.gguf"))


def test_without_the_server_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "service.admission", None)
    with pytest.raises(ImportError, match="tenon-server"):
        tenon.LLM("smollm2")


@pytest.mark.model
def test_the_default_model_knows_the_capital_of_france(smollm2_path: Path) -> None:
    with tenon.LLM(str(smollm2_path), dtype="float32") as llm:
        (answer,) = llm.chat("What is the capital of France?", temperature=0, max_tokens=24)
        (raw,) = llm.generate("The capital of France is", temperature=0, max_tokens=8, stop=".")
    assert "Paris" in answer.outputs[0].text
    assert raw.outputs[0].finish_reason in ("stop", "length")
    assert "torch" in sys.modules
