"""The requests of /tokenize, /detokenize and /apply-template, in vLLM's and llama-server's forms."""

from typing import Annotated, Any, Final

from pydantic import BeforeValidator, ConfigDict, Field

from forerun.server.protocols.conversation import ConversationFields, Messages
from forerun.server.protocols.fields import MAX_TOKENS, Fields, Name, TokenId, has, whole

ONE_OF_THREE: Final[Any] = [has("prompt"), has("messages"), has("content")]


class TokenizeRequest(ConversationFields):
    """POST /tokenize: a text, or messages to format with the chat template.

    Args:
        content: the text, in llama-server's form.
        add_special: llama-server's name for add_special_tokens, of which the default is false.
        with_pieces: also give the text of each token.
    """

    model_config = ConfigDict(json_schema_extra={"oneOf": ONE_OF_THREE})
    model: Name | None = None
    prompt: str | None = None
    messages: Messages | None = None  # type: ignore[assignment]
    content: str | None = None
    add_special_tokens: bool = True
    add_special: bool = False
    with_pieces: bool = False


class DetokenizeRequest(Fields):
    """POST /detokenize."""

    model: Name | None = None
    tokens: Annotated[list[TokenId], Field(max_length=MAX_TOKENS, fail_fast=True), BeforeValidator(whole)]


class TemplateRequest(ConversationFields):
    """POST /apply-template: messages to format with the chat template."""

    model: Name | None = None
