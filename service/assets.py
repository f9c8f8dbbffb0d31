"""Reads from a checkpoint what the service itself needs of it."""

from pathlib import Path

from engine.loading import open_checkpoint
from service.chat_template import load_chat_template
from service.runtime import ModelAssets
from service.tokenizer import load_tokenizer


def load_assets(model_path: str, chat_template: str | None) -> ModelAssets:
    """Tokenizer, template, end ids and sampling defaults of a model file or directory.

    chat_template: path of a template in place of the model's own. Raises ValueError or OSError,
    naming the file.
    """
    template_source = _read_template(chat_template) if chat_template is not None else None
    tokenizer = load_tokenizer(model_path)
    source = open_checkpoint(model_path)
    try:
        # What the weights file calls the end and what the tokenizer does may differ: both end.
        end_ids = {*source.config.end_token_ids, *tokenizer.end_ids}
        return ModelAssets(
            tokenizer=tokenizer,
            template=load_chat_template(tokenizer, template_source),
            end_token_ids=tuple(sorted(end_ids)),
            sampling_defaults=source.sampling_defaults,
        )
    finally:
        source.close()


def _read_template(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"chat_template {path} is not UTF-8 text") from None
