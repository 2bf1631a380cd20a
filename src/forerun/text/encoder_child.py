"""A process that encodes with a tokenizer of unknown patterns, within limits: it may be killed at any moment."""

from functools import cache

import tokenizers

from forerun.text.encoder import ids_of, without_space
from forerun.wires.child_loop import Answer, Said, answer_questions


def main() -> None:
    """Answer until the input ends."""
    answer_questions(answerer)


def answerer(head: Said) -> Answer:
    """Return the function that encodes; it loads the tokenizer at the first question."""

    @cache
    def loaded(*, is_inside: bool) -> tokenizers.Tokenizer:
        return without_space(loaded(is_inside=False)) if is_inside else tokenizers.Tokenizer.from_str(head["form"])

    def answer(asked: Said) -> Said:
        try:
            backend = loaded(is_inside="is_inside" in asked)
            return {"ids": ids_of(backend, asked["text"], add_special_tokens=asked["add_special_tokens"])}
        except (KeyboardInterrupt, SystemExit, MemoryError):
            raise
        except BaseException as error:  # noqa: BLE001 - a panic in Rust is not an Exception in Python
            return {"fault": str(error)}

    return answer
