"""Fields that other servers support and this one does not: refused if ignoring them would change the answer."""

from collections.abc import Mapping
from typing import Any, Final

from pydantic_core import PydanticCustomError

from forerun.server.protocols.errors import invalid

TOOLS: Final = "tools are not supported yet: leave them out; the model would not be told of them."
SHAPE: Final = 'constrained output is not supported yet: only response_format {"type": "text"} is.'
REFUSED: Final[Mapping[str, str]] = {
    **dict.fromkeys(("tools", "functions", "tool_choice", "function_call"), TOOLS),
    **dict.fromkeys(("response_format", "structured_outputs", "grammar", "json_schema"), SHAPE),
    **dict.fromkeys(("guided_json", "guided_regex", "guided_choice", "guided_grammar"), SHAPE),
    **dict.fromkeys(("audio", "modalities"), "this model generates text only."),
    "suffix": "filling in before a suffix is not supported.",
    "best_of": "best_of is not supported: ask for n texts and choose one.",
    "min_tokens": "min_tokens is not supported; ignore_eos writes up to max_tokens.",
    "prompt_logprobs": "prompt_logprobs is not supported.",
    "include_stop_str_in_output": "include_stop_str_in_output is not supported.",
    "return_token_ids": "return_token_ids is not supported; forerun.details gives them.",
    "web_search_options": "web search is not supported.",
}
HARMLESS: Final[Mapping[str, tuple[Any, ...]]] = {
    "tool_choice": ("none", "auto"),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "best_of": (1,),
}
UNSUPPORTED: Final = "unsupported_parameter"
PART_KINDS: Final = ("image", "audio", "video", "file")  # each content part of other servers has one in its type
MAX_NAMED: Final = 20  # ignored fields in the header
MAX_NAME_CHARACTERS: Final = 64


def refuse_unsupported(extra: Mapping[str, Any]) -> None:
    """Raise ApiError for an unsupported field, unless its value has no effect anyway."""
    for name, sentence in REFUSED.items():
        value = extra.get(name)
        if value and value not in HARMLESS.get(name, ()):
            raise invalid(f"{name}: {sentence}", param=name, code=UNSUPPORTED)


def require_text_parts(content: Any) -> Any:
    """Return a message's content unchanged; raises PydanticCustomError if a part is not text."""
    parts = content if isinstance(content, list) else ()
    for kind in (part.get("type") for part in parts if isinstance(part, dict)):
        if kind != "text" and isinstance(kind, str):
            named = next((name for name in PART_KINDS if name in kind), "such")
            raise PydanticCustomError(
                UNSUPPORTED, "{kind} parts are not supported: this model reads text", {"kind": named}
            )
    return content


def ignored_header(extra: Mapping[str, Any]) -> dict[str, str]:
    """The header that lists ignored fields, without names that are not allowed in a header."""
    names = [name for name in extra if name not in REFUSED and is_plain(name)][:MAX_NAMED]
    return {"x-forerun-ignored": ",".join(names)} if names else {}


def is_plain(name: str) -> bool:
    return len(name) <= MAX_NAME_CHARACTERS and name.isascii() and name.replace("_", "a").replace("-", "a").isalnum()
