"""Text to token ids and back, with transformers' results.

transformers is not used: its import takes seconds, and `tokenizers` has everything that is needed here.
"""

from collections.abc import Mapping, Sequence
from copy import copy
from types import MappingProxyType
from typing import Final

import tokenizers

from forerun.core.errors import ConfigError
from forerun.text.chat_template import NO_VARIABLES, TEMPLATE_FILE, ChatTemplate
from forerun.text.control_tokens import SEAM, ControlTokens, any_of
from forerun.text.conversation import Message, plain_message
from forerun.text.encoder import BoundedEncoder, LocalEncoder, faults_told

SPACE: Final = "\u2581"  # sentencepiece's character for a space
NO_PARTS: Final[Mapping[str, object]] = MappingProxyType({})
NO_TWINS: Final[Mapping[int, int]] = MappingProxyType({})
PLAIN_BYTES: Final = frozenset((*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)))
OTHER_BYTES: Final = tuple(byte for byte in range(256) if byte not in PLAIN_BYTES)
# Byte-level tokens write each byte as a letter (GPT-2's alphabet): bytes that Latin-1 shows as that character, the
# others as U+0100 and on, in their order.
BYTE_OF_LETTER: Final = {chr(byte): byte for byte in PLAIN_BYTES} | {
    chr(256 + n): byte for n, byte in enumerate(OTHER_BYTES)
}


class Tokenizer:
    """One checkpoint's tokenizer, immutable.

    Attributes:
        chat_template: the checkpoint's; None if it has none.
        added_ids: ids of tokens that were added to the trained vocabulary, such as control tokens.
        id_of_added: the ids of these tokens by their texts.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        template: str | None,
        special_tokens: Mapping[str, str],
        foreign_parts: Mapping[str, object] = NO_PARTS,
        twins: Mapping[int, int] = NO_TWINS,
    ) -> None:
        """Make a tokenizer from its parts.

        Args:
            template: the source of the chat template; None if the checkpoint has none.
            special_tokens: the tokens that a template may mention, by name, such as bos_token.
            foreign_parts: parts of tokenizer.json that the backend lacks and that only a process with limits may run.
            twins: ids that the backend lacks, because another id has the same text, and this other id.
        """
        self._backend = backend
        self._special_tokens = special_tokens
        self._twins = twins
        self._encoder = BoundedEncoder(backend, foreign_parts) if foreign_parts else LocalEncoder(backend)
        self.chat_template = None if template is None else ChatTemplate(source=template, special_tokens=special_tokens)
        added = backend.get_added_tokens_decoder()
        self.added_ids = frozenset(added)
        self._special_ids = frozenset(id_ for id_, token in added.items() if token.special)
        self._added = any_of([token.content for token in added.values()])
        self.id_of_added = {token.content: id_ for id_, token in added.items()}
        self._control = ControlTokens([token.content for token in added.values() if token.special])
        self._byte_ids = _byte_fallback_ids(backend)
        self._byte_of_letter = BYTE_OF_LETTER if "ByteLevel" in str(backend.decoder) else {}
        self._space = SPACE if SPACE in str(backend.decoder) else " "

    @property
    def num_ordinary(self) -> int:
        """The number of tokens, not counting added ones."""
        return self._backend.get_vocab_size(with_added_tokens=False)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """The ids of a text; with the special tokens that the checkpoint puts around a plain prompt.

        Raises:
            ConfigError: the text holds a lone surrogate, which Python may make of bytes that are not UTF-8.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ConfigError(
                f"the text holds {text[error.start]!r} at place {error.start}, which is not a character: read files "
                'and input as UTF-8, or decode them with errors="replace"'
            ) from None
        return self._encoder.ids(text, add_special_tokens=add_special_tokens)

    def encode_inside(self, text: str) -> list[int]:
        """The ids of text inside a text: without the space that some tokenizers put before one."""
        return self._encoder.ids_inside(text)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of these ids. Special tokens and ids without a token (of a padded head) add nothing."""
        with faults_told("read these ids"):
            return self._backend.decode([self._twins.get(id_, id_) for id_ in ids], skip_special_tokens=True)

    def to_json(self) -> str:
        """The text of a tokenizer.json with the same tokens; without the chat template."""
        return self._encoder.to_json()

    def with_chat_template(self, source: str) -> "Tokenizer":
        """The same tokenizer with another chat template.

        Raises:
            ConfigError: it is not a Jinja template.
        """
        other = copy(self)
        template = other.chat_template = ChatTemplate(source=source, special_tokens=self._special_tokens)
        template.variables()  # raises if it is not a valid template
        return other

    def apply_chat_template(
        self,
        messages: Sequence[Message],
        variables: Mapping[str, object] = NO_VARIABLES,
        *,
        continue_final_message: bool = False,
    ) -> list[int]:
        """The ids of a conversation up to where the assistant's next answer begins, or its last one continues.

        The content of a message stays text, even if it looks like a control token: it cannot end its own turn and begin
        another. transformers and llama.cpp allow that.

        Args:
            variables, continue_final_message: see `ChatTemplate.render`.

        Raises:
            ConfigError: the checkpoint has no chat template, or it refuses these messages.
        """
        if self.chat_template is None:
            raise ConfigError(
                "this checkpoint has no chat template, so chat messages have no defined form for it; "
                f"give a plain text prompt, name a chat_template, or put one into {TEMPLATE_FILE} in its folder"
            )
        text = self.chat_template.render(
            self.parted(messages), self.parted_variables(variables), continue_final_message=continue_final_message
        )
        return self.encode_rendered(text)

    def parted(self, messages: Sequence[Message]) -> list[Message]:
        """Messages for the chat template to render, marked so that `encode_rendered` reads their content as text."""
        return [self._control.parted(plain_message(message)) for message in messages]

    def parted_variables(self, variables: Mapping[str, object]) -> dict[str, object]:
        """The template's variables, such as tools, marked like `parted` messages."""
        return {name: self._control.parted(value) for name, value in variables.items()}

    def encode_rendered(self, text: str) -> list[int]:
        """The ids of a conversation that the chat template rendered from `parted` messages and variables."""
        first, *others = text.split(SEAM)
        ids = self.encode(first, add_special_tokens=False)
        for part in others:
            found = self._added.search(part)
            place = found.start() if found else len(part)
            ids += self._encoder.ids_inside(part[:place])
            ids += self.encode(part[place:], add_special_tokens=False)
        return ids

    @property
    def has_chat_template(self) -> bool:
        return self.chat_template is not None

    def template_variables(self) -> frozenset[str]:
        """The names of the chat template's variables; see `ChatTemplate.variables`."""
        return frozenset() if self.chat_template is None else self.chat_template.variables()

    def vocabulary(self) -> dict[str, int]:
        """Every token's id, added tokens included, as the tokens are written in tokenizer.json."""
        return self._backend.get_vocab(with_added_tokens=True)

    def is_silent(self, id_: int) -> bool:
        """Whether `decode` leaves this id out: a special token, or an id that no token has."""
        return id_ in self._special_ids or self._backend.id_to_token(self._twins.get(id_, id_)) is None

    def is_byte(self, id_: int) -> bool:
        """Whether this is a byte-fallback token, which is decoded together with its neighbouring byte tokens."""
        return id_ in self._byte_ids

    def bytes_of(self, id_: int) -> bytes:
        """The UTF-8 bytes of this token, which may be a part of a character."""
        token = self._backend.id_to_token(self._twins.get(id_, id_)) or ""
        if self.is_byte(id_):
            return bytes.fromhex(token[3:5])  # <0xF0>
        if not all(letter in self._byte_of_letter for letter in token):
            return token.replace(self._space, " ").encode()
        return bytes(self._byte_of_letter[letter] for letter in token)


def _byte_fallback_ids(backend: tokenizers.Tokenizer) -> frozenset[int]:
    if "ByteFallback" not in str(backend.decoder):
        return frozenset()
    ids = (backend.token_to_id(f"<0x{byte:02X}>") for byte in range(256))
    return frozenset(id_ for id_ in ids if id_ is not None)
