"""A checkpoint's Jinja chat template: it turns messages into the form of text that its model was trained on.

A template comes with a model and is a program, so it runs only in `template_child`, a process with limits.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final

import msgspec

from forerun.core.errors import ConfigError, require
from forerun.core.json_file import MAX_JSON_BYTES, read_bounded, short
from forerun.core.paths import path_of
from forerun.text.conversation import Message, plain_message
from forerun.text.output.traits import TemplateTraits
from forerun.wires.bounded_child import USUAL_LIMITS, BoundedChild, LimitError, Limits

TEMPLATE_FILE: Final = "chat_template.jinja"
USUAL: Final[Mapping[str, object]] = MappingProxyType({"tools": None, "documents": None, "add_generation_prompt": True})
NO_VARIABLES: Final[Mapping[str, object]] = MappingProxyType({})
OPEN_END: Final = "\ufdd1 "  # where an answer continues: a noncharacter, not used in text. The space shows trimming.
NAMED_TEMPLATES: Final[Mapping[str, str]] = {
    "chatml": "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    "llama3": "{{ bos_token }}{% for message in messages %}<|start_header_id|>{{ message['role'] }}<|end_header_id|>"
    "\n\n{{ message['content'] | trim }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}",
    "zephyr": "{% for message in messages %}<|{{ message['role'] }}|>\n{{ message['content'] }}{{ eos_token }}\n"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>\n{% endif %}",
}
MARKS: Final = ("{{", "{%", "{#", "\n")  # a template's text contains one of these; names and paths contain none


class ChatTemplate:
    """A template's source with the special tokens that it may use, such as bos_token.

    Its process starts when it is needed, or with `start`, and ends with `close` or with this object.
    """

    def __init__(self, *, source: str, special_tokens: Mapping[str, str]) -> None:
        self.source = source
        self.special_tokens = special_tokens
        self._traits: TemplateTraits | None = None
        self._child = BoundedChild("forerun.text.template_child", {"source": source})

    def start(self) -> None:
        """Start its process without waiting for it."""
        self._child.start()

    def close(self) -> None:
        """End its process; the next request starts another one."""
        self._child.close()

    def variables(self, limits: Limits = USUAL_LIMITS) -> frozenset[str]:
        """The names of the template's own variables, such as enable_thinking.

        Raises:
            ConfigError: it is not a valid Jinja template.
            LimitError: finding them takes too much time or memory.
        """
        found = self._ask({}, "to be read", limits)
        return frozenset(found["names"]) - {*USUAL, *self.special_tokens, "messages"}

    def traits(self) -> TemplateTraits:
        """The form of conversations that the template accepts, and how its model writes thoughts and calls; found once.

        Raises:
            ConfigError, LimitError: as for `variables`.
        """
        if self._traits is None:
            question = {"traits": True, "given": {**USUAL, **self.special_tokens}, "now": datetime.now().isoformat()}
            found = self._ask(question, "to be tried", USUAL_LIMITS)
            if "refused" in found:
                raise ConfigError(f"the chat template cannot be tried: {found['refused']}")
            self._traits = msgspec.convert(found["traits"], TemplateTraits)
        return self._traits

    def render(
        self,
        messages: Sequence[Message],
        variables: Mapping[str, object] = NO_VARIABLES,
        limits: Limits = USUAL_LIMITS,
        *,
        continue_final_message: bool = False,
    ) -> str:
        """The text of these messages, ending where the assistant's next answer begins.

        Args:
            continue_final_message: end the text after the last message instead, which is the assistant's and will be
                continued; as in transformers.
            variables: the template's own variables, such as enable_thinking. They override the variables that every
                template has: the special tokens, tools, documents and add_generation_prompt.

        Keys whose value is None are left out, as transformers does: templates handle a missing key, not a null. Content
        in parts, as OpenAI's API takes it, is joined by line breaks, as vLLM does: these models' templates expect text.

        Raises:
            ConfigError: there are no messages, or the template refuses them, or is broken; or the last message cannot
                be continued.
            LimitError: it takes too much time or memory.
        """
        if not messages:
            raise ConfigError("the list of chat messages is empty: give at least one message, such as a user's")
        require(
            "messages" not in variables, "messages cannot be a variable of a chat template: give them as the prompt"
        )
        known = [plain_message(message) for message in messages]
        if continue_final_message:
            known[-1] = _with_open_end(known[-1])
            variables = {**variables, "add_generation_prompt": False}
        given = {**USUAL, **self.special_tokens, **variables, "messages": known}
        found = self._ask({"given": given, "now": datetime.now().isoformat()}, "for these messages", limits)
        if "refused" in found:
            roles = [message.get("role") for message in known]
            raise ConfigError(f"the chat template refused these messages: {found['refused']}; roles were {roles}")
        text = str(found["text"])
        return _cut_at_open_end(text) if continue_final_message else text

    def _ask(self, question: Mapping[str, object], purpose: str, limits: Limits) -> Mapping[str, Any]:
        """Ask the process that runs the template; every error of a template is raised here."""
        try:
            found: Mapping[str, Any] = self._child.ask(question, limits)
        except LimitError as error:
            raise LimitError(
                f"the chat template takes too much time or memory {purpose} ({error}): give another one with "
                "chat_template, or shorter messages"
            ) from error
        if "invalid" in found:
            raise ConfigError(
                f"the chat template {short(self.source)} is not a valid Jinja template ({found['invalid']}): correct "
                "it, or give another one"
            )
        return found


def _with_open_end(message: Message) -> Message:
    require(
        message.get("role") == "assistant" and bool(message.get("content")),
        "only an answer can be continued: the last message must be the assistant's, with a text as content",
    )
    return {**message, "content": message["content"] + OPEN_END}


def _cut_at_open_end(text: str) -> str:
    """The text up to the open end; a template that trims answers removes the space at its end."""
    before, mark, after = text.rpartition(OPEN_END[0])
    require(
        mark != "",
        "the chat template leaves out the last message, so it cannot be continued: end with a user's message",
    )
    return before if after.startswith(OPEN_END[1]) else before.rstrip()


def read_template(given: str) -> str:
    """The source of a chat template.

    Args:
        given: a template's name, its text, or the path of a file that holds it.

    Raises:
        ConfigError: it is none of these, or the file cannot be read.
    """
    if given in NAMED_TEMPLATES:
        return NAMED_TEMPLATES[given]
    if any(mark in given for mark in MARKS):
        return given
    try:
        return read_bounded(path_of(given), MAX_JSON_BYTES).decode("utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"chat_template {short(given)} cannot be read as a file ({error}): give a UTF-8 file with a Jinja "
            f"template, the template itself, or one of {', '.join(NAMED_TEMPLATES)}"
        ) from error
