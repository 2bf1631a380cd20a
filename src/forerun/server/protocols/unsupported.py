"""Fields and parts of messages that other servers support and this one does not.

Fields are refused if ignoring them would change the answer. Clients send their whole history with every request, so
a note stands in the place of an image in it; only a request that has nothing but images is refused.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from forerun.server.protocols.errors import invalid

SAMPLER: Final = "this sampler is not supported: leave it out, or give its neutral value."
REFUSED: Final[Mapping[str, str]] = {
    **dict.fromkeys(("functions", "function_call"), "these are OpenAI's former names: use tools and tool_choice."),
    **dict.fromkeys(("audio", "modalities"), "this model generates text only."),
    "best_of": "best_of is not supported: ask for n texts and choose one.",
    "min_tokens": "min_tokens is not supported; ignore_eos writes up to max_tokens.",
    "prompt_logprobs": "they are a field of chat completions and of completions.",
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
NOTES: Final[Mapping[str, str]] = {  # each content part of other servers has one of these kinds in its type
    "image": "[an image that this model cannot see]",
    "audio": "[a recording that this model cannot hear]",
    "video": "[a video that this model cannot see]",
    "file": "[a file that this model cannot read]",
    "document": "[a document that this model cannot read]",
}
MAX_NAMED: Final = 20  # ignored fields in the header
MAX_NAME_CHARACTERS: Final = 64


def refuse_unsupported(extra: Mapping[str, Any]) -> None:
    """Raise ApiError for an unsupported field, unless its value has no effect anyway."""
    for name, sentence in REFUSED.items():
        value = extra.get(name)
        if value and value not in HARMLESS.get(name, ()):
            raise invalid(f"{name}: {sentence}", param=name, code=UNSUPPORTED)


def readable(part: Mapping[str, Any]) -> str | None:
    """The text of a part of a message; None if it has none."""
    match part:
        case {"type": "text" | "input_text" | "output_text", "text": str(text)}:
            return text
        case {"type": "refusal", "refusal": str(text)}:
            return text
        case {"type": "document", "source": {"type": "text", "data": str(text)}}:
            return text
        case {"type": "document", "source": {"type": "content", "content": str(text)}}:
            return text
        case {"type": "document", "source": {"type": "content", "content": [*parts]}}:
            return "\n".join(said for said in map(readable, filter(is_part, parts)) if said is not None)
    return None


def is_part(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("type"), str)


def kind_of(part: Mapping[str, Any]) -> str | None:
    """The kind of a part that a note stands for, such as image; None for other parts."""
    return next((kind for kind in NOTES if kind in part["type"]), None) if is_part(part) else None


def texts_of_parts(parts: Iterable[Mapping[str, Any]], ignored: list[str], *, at: str, is_result: bool) -> list[str]:
    """The texts of parts, with notes in the place of those that cannot be read, whose names are added to `ignored`.

    Args:
        at: the place of the parts in the request, before their type in these names.
        is_result: they are a tool's result, so that parts of unknown kinds are given as JSON; otherwise left out.
    """
    texts = []
    for part in parts:
        text = readable(part)
        if text is None and (kind := kind_of(part)) is not None:
            text = NOTES[kind]
            ignored.append(f"{at}.{part['type']}")
        elif text is None and is_result:
            text = as_text(part)
        elif text is None:
            ignored.append(f"{at}.{part.get('type', '')}")
        if text is not None:
            texts.append(text)
    return texts


def as_text(value: Any) -> str:
    """A text as it is, null as an empty text, and other values as JSON."""
    return value if isinstance(value, str) else "" if value is None else json.dumps(value, ensure_ascii=False)


def require_readable(parts: Sequence[Mapping[str, Any]], param: str) -> None:
    """Raise ApiError if the parts of the last message, a user's, are images or files without a text."""
    kinds = [kind for part in parts if readable(part) is None and (kind := kind_of(part)) is not None]
    if kinds and not any((readable(part) or "").strip() or part.get("type") == "tool_result" for part in parts):
        raise invalid(
            f"{param}: {kinds[0]} parts are not supported: this model reads text only. Add a text to the message.",
            param=param,
            code=UNSUPPORTED,
        )


def ignored_header(names: Iterable[str]) -> dict[str, str]:
    """The header that lists ignored fields, without names that are not allowed in a header."""
    plain = [name for name in dict.fromkeys(names) if name not in REFUSED and is_plain(name)][:MAX_NAMED]
    return {"x-forerun-ignored": ",".join(plain)} if plain else {}


def is_plain(name: str) -> bool:
    """True for a name that may stand in a header, such as tools.web_search."""
    plain = name.replace("_", "a").replace("-", "a").replace(".", "a")
    return len(name) <= MAX_NAME_CHARACTERS and name.isascii() and plain.isalnum()
