"""Prompts to fill in the middle of a text: the models' marks for it, and their positions."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from forerun.server.protocols.generation_request import Middle
from forerun.text.control_tokens import SEAM, any_of
from forerun.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class MiddleMarks:
    """The marks of a family of models.

    Args:
        prefix, suffix: before the text that precedes the gap, and before the text that follows it.
        middle: where the answer begins; "" if the prefix's text is the last part.
        repository, file: before the name of a repository, and of a file.
        ends: tokens that end the answer, besides the model's own.
    """

    prefix: str
    suffix: str
    middle: str
    repository: str = ""
    file: str = ""
    ends: Sequence[str] = ()

    @property
    def is_suffix_first(self) -> bool:
        return not self.middle


KNOWN: Final = (
    MiddleMarks(
        prefix="<|fim_prefix|>",
        suffix="<|fim_suffix|>",
        middle="<|fim_middle|>",
        repository="<|repo_name|>",
        file="<|file_sep|>",
        ends=("<|endoftext|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"),
    ),  # Qwen2.5-Coder and later ones, Granite
    MiddleMarks(
        prefix="<fim_prefix>",
        suffix="<fim_suffix>",
        middle="<fim_middle>",
        repository="<repo_name>",
        file="<file_sep>",
        ends=("<|endoftext|>", "<fim_pad>", "<repo_name>", "<file_sep>", "<reponame>"),
    ),  # StarCoder, SmolLM
    MiddleMarks(prefix="<fim-prefix>", suffix="<fim-suffix>", middle="<fim-middle>", ends=("<|endoftext|>",)),
    MiddleMarks(prefix="<｜fim▁begin｜>", suffix="<｜fim▁hole｜>", middle="<｜fim▁end｜>"),  # noqa: RUF001 - DeepSeek-Coder
    MiddleMarks(prefix="▁<PRE>", suffix="▁<SUF>", middle="▁<MID>", ends=("▁<EOT>",)),  # CodeLlama
    MiddleMarks(prefix="<|code_prefix|>", suffix="<|code_suffix|>", middle="<|code_middle|>"),  # GLM
    MiddleMarks(prefix="<[fim-prefix]>", suffix="<[fim-suffix]>", middle="<[fim-middle]>"),  # Zeta
    MiddleMarks(prefix="[PREFIX]", suffix="[SUFFIX]", middle=""),  # Codestral and Mistral
)
PROJECT: Final = "myproject"  # if the client gives no names, as in llama-server
FILE: Final = "filename"
TEXTS: Final = [text for marks in KNOWN for text in (marks.prefix, marks.suffix, marks.middle, *marks.ends)]
ALL_MARKS: Final = re.compile(f"(?s)(?={any_of([text for text in TEXTS if text]).pattern}).")


class MiddleReader:
    """Makes prompts to fill in the middle with a model's own marks."""

    def __init__(self, tokenizer: Tokenizer, marks: MiddleMarks, ids: Mapping[str, int]) -> None:
        self._tokenizer = tokenizer
        self._marks = marks
        self._ids = ids
        self.end_ids = tuple(ids[mark] for mark in marks.ends if mark in ids)

    def ids(self, gap: Middle) -> list[int]:
        """The ids of a prompt. Marks that are written in its texts stay text."""
        marks = self._marks
        files = self._files(gap)
        begin = self._ids[marks.prefix]
        end = self._ids[marks.suffix]
        prefix = self._plain(gap.prefix)
        suffix = self._plain(gap.suffix)
        first = self._tokenizer.encode("")  # the tokens that begin every prompt, such as <s>
        if marks.is_suffix_first:
            return [*first, *files, end, *suffix, begin, *prefix]
        return [*first, *files, begin, *prefix, end, *suffix, self._ids[marks.middle]]

    def _files(self, gap: Middle) -> list[int]:
        """Other files before the gap's; as plain text if the model has no marks for them."""
        marks = self._marks
        found = list[int]()
        if not gap.files:
            return found
        has_marks = marks.repository in self._ids and marks.file in self._ids
        if has_marks:
            found += [self._ids[marks.repository], *self._plain(f"{PROJECT}\n")]
        for name, text in gap.files:
            found += [self._ids[marks.file]] if has_marks else []
            found += self._plain(f"{name}\n{text}\n")
        return [*found, self._ids[marks.file], *self._plain(f"{FILE}\n")] if has_marks else found

    def _plain(self, text: str) -> list[int]:
        """The ids of plain text; seams divide texts that look like marks."""
        (message,) = self._tokenizer.parted([{"content": text}])
        return self._tokenizer.encode_rendered(SEAM + ALL_MARKS.sub(rf"\g<0>{SEAM}", message["content"]))


def middle_reader(tokenizer: Tokenizer) -> MiddleReader | None:
    """A reader for a model that can fill in the middle; None for others.

    A model can if its added tokens have all marks of one of the known families. CodeLlama's are ordinary tokens.
    """
    ids = {token: id_ for token, id_ in tokenizer.vocabulary().items() if id_ in tokenizer.added_ids or token[0] == "▁"}
    for marks in KNOWN:
        if all(mark in ids for mark in (marks.prefix, marks.suffix, marks.middle) if mark):
            return MiddleReader(tokenizer, marks, ids)
    return None
