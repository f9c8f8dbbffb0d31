"""Every field of a spec reaches the options; what a caller leaves out stays open."""

from engine.request import Priority
from grammar.spec import ConstraintKind, ConstraintSpec
from service.options import ChatMessage, ChatPrompt, OutputChoice, TextPrompt, TokenPrompt
from service.translate import translate_spec
from service.translate_constraint import translate_constraint
from tenon.specs import chat, completion
from tenon.v1 import constraint_pb2, generation_pb2, prompt_pb2

VOCAB_SIZE = 100


def test_an_empty_spec_leaves_everything_to_the_model() -> None:
    options = translate_spec(completion("x"), VOCAB_SIZE)
    assert options.prompt == TextPrompt("x", None)
    assert options.sampling.temperature is None
    assert options.sampling.seed is None
    assert options.sampling.num_outputs == 1
    assert options.stop.max_tokens is None
    assert options.output == OutputChoice()
    assert options.priority is Priority.STANDARD
    assert options.constraint is None
    assert not options.truncate


def test_every_sampling_field_arrives() -> None:
    spec = completion("x")
    values = {
        "temperature": 0.5,
        "top_p": 0.25,
        "top_k": 0,
        "min_p": 0.125,
        "frequency_penalty": -1.5,
        "presence_penalty": 1.5,
        "repetition_penalty": 2.0,
        "seed": 2**64 - 1,
        "num_outputs": 16,
    }
    for name, value in values.items():
        setattr(spec.sampling, name, value)
    spec.sampling.logit_bias[7] = -100
    spec.sampling.logit_bias[3] = 100
    sampling = translate_spec(spec, VOCAB_SIZE).sampling
    assert {name: getattr(sampling, name) for name in values} == values
    assert sampling.logit_bias == ((3, 100.0), (7, -100.0))


def test_the_bounds_themselves_are_allowed() -> None:
    for name, value in (
        ("temperature", 0.0),
        ("temperature", 2.0),
        ("top_p", 1.0),
        ("min_p", 0.0),
        ("frequency_penalty", -2.0),
        ("presence_penalty", 2.0),
        ("repetition_penalty", 10.0),
    ):
        spec = completion("x")
        setattr(spec.sampling, name, value)
        assert getattr(translate_spec(spec, VOCAB_SIZE).sampling, name) == value


def test_every_stop_field_arrives() -> None:
    spec = completion("x")
    spec.stop.max_tokens = 9
    spec.stop.min_tokens = 9
    spec.stop.stop_strings.extend(["a", "b" * 256])
    spec.stop.stop_token_ids.extend([0, 99])
    spec.stop.include_stop_string = True
    spec.stop.ignore_eos = True
    spec.stop.max_duration.FromMilliseconds(1)
    stop = translate_spec(spec, VOCAB_SIZE).stop
    assert (stop.max_tokens, stop.min_tokens) == (9, 9)
    assert stop.stop_strings == ("a", "b" * 256)
    assert stop.stop_token_ids == (0, 99)
    assert stop.include_stop_string
    assert stop.ignore_eos
    assert stop.max_duration == 0.001


def test_output_scheduling_and_cache_arrive() -> None:
    spec = completion([1, 2])
    spec.prompt.truncation = prompt_pb2.TRUNCATION_POLICY_DROP_OLDEST
    for name in ("token_ids", "logprobs", "skip_text", "prompt_token_ids", "special_tokens"):
        setattr(spec.output, name, True)
    spec.output.top_logprobs = 20
    spec.scheduling.priority = generation_pb2.PRIORITY_CLASS_BATCH
    spec.scheduling.max_queue_time.FromSeconds(3)
    spec.cache.bypass = True
    spec.cache.narrow = "n"
    options = translate_spec(spec, VOCAB_SIZE)
    assert options.prompt == TokenPrompt((1, 2))
    assert options.truncate
    assert options.output == OutputChoice(True, 20, True, True, True)
    assert (options.priority, options.max_queue_time) == (Priority.BATCH, 3.0)
    assert (options.bypass_cache, options.cache_narrow) == (True, "n")


def test_a_conversation_arrives_with_its_parts_joined() -> None:
    spec = chat([{"role": "developer", "content": "a"}, {"role": "assistant", "content": "b"}])
    last = spec.prompt.conversation.messages[1]
    last.parts.add(text="c")
    last.name, last.reasoning = "n", "r"
    spec.prompt.conversation.continue_final_message = True
    spec.prompt.conversation.template_variables_json = '{"a": 1}'
    spec.prompt.conversation.tool_choice.none.SetInParent()
    assert translate_spec(spec, VOCAB_SIZE).prompt == ChatPrompt(
        (ChatMessage("developer", "a"), ChatMessage("assistant", "bc", "n", "r")), True, '{"a": 1}'
    )


def test_a_constraint_arrives_with_its_settings() -> None:
    constraint = constraint_pb2.Constraint(
        choice=constraint_pb2.Choice(options=["a", "é"]),
        backend=constraint_pb2.CONSTRAINT_BACKEND_LLGUIDANCE,
        whitespace=constraint_pb2.WHITESPACE_BOUNDED,
        must_close=False,
    )
    assert translate_constraint(constraint, "c") == ConstraintSpec(
        ConstraintKind.CHOICE, '["a", "é"]', "llguidance", True, False
    )


def test_every_kind_of_constraint_is_known() -> None:
    kinds = constraint_pb2.Constraint.DESCRIPTOR.oneofs_by_name["kind"].fields
    assert {kind.name for kind in kinds} == set(ConstraintKind)


def test_a_field_that_is_added_to_the_protos_must_be_added_here() -> None:
    """The numbers of fields that translation handles: a new one must be translated or refused."""
    handled = {
        generation_pb2.GenerationSpec: 8,
        generation_pb2.SamplingParams: 11,
        generation_pb2.StopParams: 7,
        generation_pb2.OutputOptions: 8,
        generation_pb2.SchedulingParams: 3,
        generation_pb2.CacheOptions: 2,
        constraint_pb2.Constraint: 11,
        prompt_pb2.Prompt: 6,
        prompt_pb2.Conversation: 7,
        prompt_pb2.Message: 6,
        prompt_pb2.Reasoning: 3,
    }
    assert {kind: len(kind.DESCRIPTOR.fields) for kind in handled} == handled
