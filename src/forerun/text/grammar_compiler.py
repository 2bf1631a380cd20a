"""Compiles grammars for a tokenizer with llguidance (https://github.com/guidance-ai/llguidance)."""

import json
from collections.abc import Mapping, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from forerun.core.errors import ConfigError, require
from forerun.core.grammar import Grammar, lark_pattern
from forerun.core.json_file import short
from forerun.text.grammar_masks import GrammarConstraint
from forerun.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

MAX_CHARACTERS: Final = 2**19
MOST_KEPT: Final = 64  # compiled grammars
STYLE: Final = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
PARSER_LIMITS: Final[Mapping[str, Any]] = {
    "initial_lexer_fuel": 200_000, "step_lexer_fuel": 50_000,  # some 15 ms: a pattern may take exponential time
    "max_items_in_row": 10_000,  # twice the most choices that a request may have
}  # fmt: skip
LEAD: Final = "LEAD: /[ \\n]{0,2}/"  # white space that models write between their thoughts and the answer


class GrammarCompiler:
    """Compiles grammars for one model. Its tokens are read at the first grammar: 1 s for 150,000 tokens.

    Args:
        vocab_size: V, the rows of the model's head.
        stop_ids: tokens that end an answer, of which one must follow a complete text.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, stop_ids: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._stop_ids = sorted(id_ for id_ in stop_ids if id_ < vocab_size)
        self._tokens: LLTokenizer | None = None
        self._compiled: dict[Grammar, LLMatcher] = {}
        self._lock = Lock()  # a server checks grammars in other threads

    def compile(self, grammar: Grammar) -> GrammarConstraint:
        """Compile a grammar; return it at the start of a text.

        Raises:
            ConfigError: the grammar is invalid, too large, or allows no text.
        """
        with self._lock:
            if self._tokens is None:
                self._tokens = self._read_tokens()
            matcher = self._compiled.pop(grammar, None) or self._compile(grammar, self._tokens)
            self._compiled[grammar] = matcher  # now the newest
            if len(self._compiled) > MOST_KEPT:
                del self._compiled[next(iter(self._compiled))]
            fresh = matcher.deep_copy()
        after = grammar.after.encode()
        trigger = grammar.trigger.encode()
        return GrammarConstraint(fresh, self._tokens, self._all_but_stops(), after=after, trigger=trigger)

    def _read_tokens(self) -> "LLTokenizer":
        from llguidance import LLTokenizer, TokenizerWrapper

        tokens = _Tokens(self._tokenizer, self._vocab_size, self._stop_ids)
        return LLTokenizer(TokenizerWrapper(tokens), n_vocab=self._vocab_size, eos_token=self._stop_ids)

    def _all_but_stops(self) -> "np.ndarray[Any, np.dtype[np.int32]]":
        bits = np.ones((self._vocab_size + 31) // 32 * 32, np.uint8)
        bits[self._stop_ids] = 0
        return np.packbits(bits, bitorder="little").view(np.int32)

    def _compile(self, grammar: Grammar, tokens: "LLTokenizer") -> "LLMatcher":
        from llguidance import LLMatcher, LLParserLimits

        shown = short(grammar.text)
        require(
            len(grammar.text) <= MAX_CHARACTERS,
            f"the grammar has {len(grammar.text)} characters: at most {MAX_CHARACTERS} are allowed",
        )
        limits = LLParserLimits(**PARSER_LIMITS)
        try:
            matcher = LLMatcher(tokens, source_of(grammar), log_level=0, limits=limits)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"the {grammar.kind} {shown} cannot be read ({error}): correct it") from None
        row = np.zeros((self._vocab_size + 31) // 32, np.int32)
        if not matcher.is_error():
            matcher.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
        if matcher.is_error():
            fault = matcher.get_error().partition("<state>")[0].strip()
            raise ConfigError(f"the {grammar.kind} {shown} cannot be compiled: {fault}")
        require(bool(row.any()), f"the {grammar.kind} {shown} allows no token of this model: correct it")
        return matcher


class _Tokens:
    """A vocabulary as llguidance reads it."""

    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, stop_ids: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self.tokens = [tokenizer.bytes_of(id_) for id_ in range(vocab_size)]
        self.special_token_ids = sorted(id_ for id_ in tokenizer.added_ids if id_ < vocab_size)
        self.eos_token_id = stop_ids[0] if stop_ids else None

    def __call__(self, text: bytes | str) -> list[int]:
        return self._tokenizer.encode_inside(text.decode(errors="replace") if isinstance(text, bytes) else text)


def source_of(grammar: Grammar) -> str:
    """The grammar in llguidance's form. JSON has one space after colons and commas, and no other white space.

    Raises:
        ValueError: a schema is not JSON, or not a schema.
    """
    from llguidance import LLMatcher

    match grammar.kind:
        case "json_schema":
            schema = styled(json.loads(grammar.text))
            if not grammar.after:
                return LLMatcher.grammar_from_json_schema(schema)
            return LLMatcher.grammar_from_lark(f"start: LEAD value\n{LEAD}\nvalue: %json {json.dumps(schema)}")
        case "regex":
            if not grammar.after:
                return LLMatcher.grammar_from_regex(grammar.text)
            return LLMatcher.grammar_from_lark(f"start: LEAD VALUE\n{LEAD}\nVALUE: {lark_pattern(grammar.text)}")
        case "lark":
            return LLMatcher.grammar_from_lark(grammar.text)


def styled(schema: Any) -> dict[str, Any]:
    """The schema with our style of JSON, unless it has its own.

    Raises:
        ValueError: it is neither an object nor true.
    """
    if schema is True:
        schema = {}
    if not isinstance(schema, dict):
        raise ValueError(f"a schema is an object or true, but this is {short(schema)}")
    own = schema.get("x-guidance", {})
    return {**schema, "x-guidance": {**STYLE, **own}} if isinstance(own, dict) else schema
