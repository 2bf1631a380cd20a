"""Fields that other servers support and this one does not: refused if ignoring them would change the answer."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from pydantic_core import PydanticCustomError

from forerun.server.protocols.errors import invalid

SAMPLER: Final = "this sampler is not supported: leave it out, or give its neutral value."
REFUSED: Final[Mapping[str, str]] = {
    **dict.fromkeys(("functions", "function_call"), "these are OpenAI's former names: use tools and tool_choice."),
    **dict.fromkeys(("audio", "modalities"), "this model generates text only."),
    "best_of": "best_of is not supported: ask for n texts and choose one.",
    "min_tokens": "min_tokens is not supported; ignore_eos writes up to max_tokens.",
    "prompt_logprobs": "prompt_logprobs is not supported.",
    "include_stop_str_in_output": "include_stop_str_in_output is not supported.",
    "return_token_ids": "return_token_ids is not supported; forerun.details gives them.",
    "web_search_options": "web search is not supported.",
    **dict.fromkeys(("typical_p", "typ_p", "mirostat", "dry_multiplier", "xtc_probability", "tfs_z"), SAMPLER),
    **dict.fromkeys(("dynatemp_range", "top_n_sigma", "top_a", "smoothing_factor"), SAMPLER),
}
HARMLESS: Final[Mapping[str, tuple[Any, ...]]] = {
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "best_of": (1,),
    **dict.fromkeys(("typical_p", "typ_p", "tfs_z"), (1,)),
    "top_n_sigma": (-1,),
}
UNSUPPORTED: Final = "unsupported_parameter"
TEXT_KINDS: Final = ("text", "input_text", "output_text", "refusal")
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
        if kind not in TEXT_KINDS and isinstance(kind, str):
            named = next((name for name in PART_KINDS if name in kind), "such")
            raise PydanticCustomError(
                UNSUPPORTED, "{kind} parts are not supported: this model reads text only", {"kind": named}
            )
    return content


def ignored_header(names: Iterable[str]) -> dict[str, str]:
    """The header that lists ignored fields, without names that are not allowed in a header."""
    plain = [name for name in dict.fromkeys(names) if name not in REFUSED and is_plain(name)][:MAX_NAMED]
    return {"x-forerun-ignored": ",".join(plain)} if plain else {}


def is_plain(name: str) -> bool:
    """True for a name that may stand in a header, such as tools.web_search."""
    plain = name.replace("_", "a").replace("-", "a").replace(".", "a")
    return len(name) <= MAX_NAME_CHARACTERS and name.isascii() and plain.isalnum()
