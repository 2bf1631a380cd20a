"""The chat template that a user gives: a file, the template itself, or the name of a common format."""

from collections.abc import Mapping
from typing import Final

from forerun.core.errors import ConfigError
from forerun.core.json_file import MAX_JSON_BYTES, read_bounded, short
from forerun.core.places import path_of

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
