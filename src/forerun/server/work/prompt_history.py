"""Finds where a conversation's prompt differs from the one before, from where on it must be read again."""

from array import array
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from forerun.core.shared_length import shared_length
from forerun.server.work.engine_call import Prompt
from forerun.text.tokenizer import Tokenizer

LEAST_SHARED: Final = 32  # tokens that two prompts of one conversation share, and more than most templates begin with
LEAST_LOST: Final = 32  # tokens; fewer differ where a template ends an answer otherwise than the model did
MOST_TEXTS: Final = 8  # for each owner: agents hold several conversations at once
MOST_OWNERS: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptChange:
    """Where a prompt stops to repeat an earlier text of the same owner.

    Args:
        num_shared: tokens before the difference.
        num_lost: tokens of the earlier text after it.
        message: index of the message with the difference, of those in the request; None: before the first message, as
            in tools.
        role: of this message.
    """

    num_shared: int
    num_lost: int
    message: int | None
    role: str = ""

    def __str__(self) -> str:
        place = "before the first message" if self.message is None else f"in message {self.message} ({self.role})"
        return (
            f"the prompt differs from an earlier one {place}, at token {self.num_shared:,}: {self.num_lost:,} tokens "
            "that were read cannot be used"
        )


@dataclass(frozen=True, slots=True, eq=False)
class EarlierText:
    """A prompt, and the answer once it is complete. An array takes 4 bytes for a token, a list nine times as many."""

    token_ids: "array[int]"


class PromptHistory:
    """The last texts of every owner."""

    def __init__(self) -> None:
        self._texts: OrderedDict[str, list[EarlierText]] = OrderedDict()  # the owner who asked last is the last

    def told_prompt(self, owner: str, prompt: Prompt, tokenizer: Tokenizer) -> tuple[EarlierText, PromptChange | None]:
        """Compare a prompt with the earlier text that it shares most tokens with, and take that text's place.

        A prompt that differs in its last message only begins another conversation, with the same instructions perhaps:
        the earlier one may go on.

        Returns:
            the text, which gets the answer's tokens, and the change.
        """
        texts = self._texts.setdefault(owner, [])
        self._texts.move_to_end(owner)
        if len(self._texts) > MOST_OWNERS:
            self._texts.popitem(last=False)
        shared = [shared_length(text.token_ids, prompt.ids) for text in texts]
        most = max(shared, default=0)
        change = None
        if most >= LEAST_SHARED:
            earlier = texts[shared.index(most)]
            num_lost = len(earlier.token_ids) - most
            if num_lost >= LEAST_LOST:
                message, role = message_at(prompt, most, tokenizer)
                if message != len(prompt.messages) - 1:
                    change = PromptChange(num_shared=most, num_lost=num_lost, message=message, role=role)
            if change is not None or num_lost < LEAST_LOST:
                texts.remove(earlier)
        text = EarlierText(array("I", prompt.ids))
        texts.append(text)
        del texts[:-MOST_TEXTS]
        return text, change


def message_at(prompt: Prompt, num_tokens: int, tokenizer: Tokenizer) -> tuple[int | None, str]:
    """The message of a conversation in which the token after `num_tokens` lies, and its role."""
    before = sum(len(tokenizer.bytes_of(id_)) for id_ in prompt.ids[:num_tokens])
    text = prompt.text.encode()
    found: tuple[int | None, str] = (None, "")
    start = 0
    for number, message in enumerate(prompt.messages):
        content = content_of(message).strip().encode()
        place = text.find(content, start) if content else -1
        if place > before:
            break
        if place >= 0:
            found = (number, str(message.get("role", "")))
            start = place + len(content)
    return found


def content_of(message: Mapping[str, Any]) -> str:
    """The text of a message's content, or of its first part."""
    content = message.get("content")
    if isinstance(content, Sequence) and not isinstance(content, str):
        content = next((part.get("text") for part in content if isinstance(part, Mapping)), "")
    return content if isinstance(content, str) else ""
