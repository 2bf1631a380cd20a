"""Prompts of every kind, and their token ids."""

from collections.abc import Mapping, Sequence
from operator import index

from forerun.core.errors import ConfigError, require
from forerun.text.chat_template import NO_VARIABLES
from forerun.text.conversation import Message
from forerun.text.tokenizer import Tokenizer

Prompt = str | Sequence[int] | Sequence[Message]


def encode(
    prompt: Prompt,
    tokenizer: Tokenizer,
    *,
    vocab_size: int,
    model: str,
    variables: Mapping[str, object] = NO_VARIABLES,
    continue_final_message: bool = False,
) -> list[int]:
    """Token ids of any kind of prompt.

    Args:
        variables: variables of the chat template, used for chat messages.
        continue_final_message: see `ChatTemplate.render`; it has no effect on prompts without chat messages.

    Raises:
        ConfigError: the prompt is empty, or holds ids outside the vocabulary.
    """
    if isinstance(prompt, str):
        prompt_ids = tokenizer.encode(prompt)
    elif holds_messages(prompt):
        prompt_ids = tokenizer.apply_chat_template(
            prompt,  # type: ignore[arg-type]
            variables,
            continue_final_message=continue_final_message,
        )
    else:
        prompt_ids = read_ids(prompt)
    if not prompt_ids:
        raise ConfigError("the prompt is empty: give at least one character, id or message")
    require_known(prompt_ids, "prompt", vocab_size=vocab_size, model=model)
    return prompt_ids


def encode_prediction(
    prediction: str | Sequence[int] | None, tokenizer: Tokenizer, *, vocab_size: int, model: str
) -> list[int]:
    """Token ids of a text that an answer may resemble, without the special tokens that begin a prompt; [] for None.

    Raises:
        ConfigError: it holds ids outside the vocabulary.
    """
    if prediction is None:
        return []
    if isinstance(prediction, str):
        token_ids = tokenizer.encode(prediction, add_special_tokens=False)
    else:
        token_ids = read_ids(prediction, "prediction")
    require_known(token_ids, "prediction", vocab_size=vocab_size, model=model)
    return token_ids


def require_known(token_ids: Sequence[int], what: str, *, vocab_size: int, model: str) -> None:
    """Raise ConfigError for ids outside the vocabulary."""
    unknown = next((token for token in token_ids if not 0 <= token < vocab_size), None)
    require(unknown is None, f"the {what} holds token id {unknown}; {model} has ids 0 to {vocab_size - 1}")


def holds_messages(prompt: object) -> bool:
    """True for a sequence of chat messages."""
    return isinstance(prompt, Sequence) and len(prompt) > 0 and isinstance(prompt[0], Mapping)


def read_ids(prompt: object, what: str = "prompt") -> list[int]:
    """Token ids from any sequence of whole numbers.

    Raises:
        ConfigError: it is something else.
    """
    require(not isinstance(prompt, (bytes, bytearray)), f"a {what} of bytes is not a text: decode it first")
    try:
        return [index(item) for item in prompt]  # type: ignore[attr-defined]
    except TypeError as error:
        raise ConfigError(
            f"a {what} of type {type(prompt).__name__} cannot be read ({error}): give a text, a sequence of token ids, "
            "or a sequence of messages, each with role and content"
        ) from error
