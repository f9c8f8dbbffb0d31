"""Short ways to write a GenerationSpec. Everything they leave out is a field of the message."""

from collections.abc import Iterable, Mapping, Sequence

from tenon.v1 import generation_pb2, prompt_pb2

ROLES = {
    "system": prompt_pb2.ROLE_SYSTEM,
    "developer": prompt_pb2.ROLE_DEVELOPER,
    "user": prompt_pb2.ROLE_USER,
    "assistant": prompt_pb2.ROLE_ASSISTANT,
    "tool": prompt_pb2.ROLE_TOOL,
}


def chat(
    messages: str | Iterable[Mapping[str, str]],
    *,
    model: str = "",
    temperature: float | None = None,
    top_p: float | None = None,
    top_k: int | None = None,
    seed: int | None = None,
    num_outputs: int | None = None,
    max_tokens: int | None = None,
    stop: Sequence[str] = (),
) -> generation_pb2.GenerationSpec:
    """The spec of a chat turn.

    messages: one user message as text, or mappings with "role" and "content". Raises ValueError for
    a role that is not one of system, developer, user, assistant, tool.
    """
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    conversation = prompt_pb2.Conversation(messages=[_message(m) for m in messages])
    spec = _spec(model, temperature, top_p, top_k, seed, num_outputs, max_tokens, stop)
    spec.prompt.conversation.CopyFrom(conversation)
    return spec


def completion(
    prompt: str | Sequence[int],
    *,
    model: str = "",
    temperature: float | None = None,
    top_p: float | None = None,
    top_k: int | None = None,
    seed: int | None = None,
    num_outputs: int | None = None,
    max_tokens: int | None = None,
    stop: Sequence[str] = (),
) -> generation_pb2.GenerationSpec:
    """The spec of a raw continuation of a text, or of token ids."""
    spec = _spec(model, temperature, top_p, top_k, seed, num_outputs, max_tokens, stop)
    if isinstance(prompt, str):
        spec.prompt.text = prompt
    else:
        spec.prompt.token_ids.ids.extend(prompt)
        spec.prompt.token_ids.SetInParent()
    return spec


def _message(message: Mapping[str, str]) -> prompt_pb2.Message:
    role = message.get("role", "")
    if role not in ROLES:
        raise ValueError(f"role is {role!r}; allowed are {', '.join(ROLES)}")
    part = prompt_pb2.ContentPart(text=message.get("content", ""))
    return prompt_pb2.Message(role=ROLES[role], parts=[part])


def _spec(
    model: str,
    temperature: float | None,
    top_p: float | None,
    top_k: int | None,
    seed: int | None,
    num_outputs: int | None,
    max_tokens: int | None,
    stop: Sequence[str],
) -> generation_pb2.GenerationSpec:
    sampling = generation_pb2.SamplingParams(
        temperature=temperature, top_p=top_p, top_k=top_k, seed=seed, num_outputs=num_outputs
    )
    stopping = generation_pb2.StopParams(max_tokens=max_tokens, stop_strings=stop)
    return generation_pb2.GenerationSpec(model=model, sampling=sampling, stop=stopping)
