"""Whatever the grammar of calls allows, the parser reads as calls whose arguments fit the tools' schemas."""

import json
import random

import jsonschema
import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from forerun.core.grammar import Grammar
from forerun.text.chat_template import ChatTemplate
from forerun.text.grammar_compiler import GrammarCompiler
from forerun.text.grammar_masks import GrammarConstraint
from forerun.text.output.call_grammar import HARMONY_THOUGHT, call_grammar
from forerun.text.output.events import CallArguments, CallEnded, CallStarted, Content, OutputEvent
from forerun.text.output.parser import OutputParser
from forerun.text.output.traits import TemplateTraits
from forerun.text.tokenizer import Tokenizer
from tests.marks import in_turn
from tests.text.output.families import FAMILIES, TOOLS
from tests.text.output.loose_families import LOOSE_FAMILIES

ALL = FAMILIES | LOOSE_FAMILIES
NUM_ANSWERS = 100  # a family
FEW_TOKENS = 60
MOST_TOKENS = 3000
CLOSERS = ('"', "}", "]", ")", "\n", ",", " ", "'")
STOP = "<|im_end|>"
SEARCH = {
    "type": "function",
    "function": {
        "name": "search_files",
        "parameters": {
            "type": "object",
            "properties": {
                "query": {"type": "string"},
                "kind": {"type": "string", "enum": ["code", 'text "2"']},
                "limit": {"type": "integer", "minimum": 1, "maximum": 50},
                "ratio": {"type": "number"},
                "exact": {"type": "boolean"},
                "folders": {"type": "array", "items": {"type": "string"}},
                "filter": {
                    "type": "object",
                    "properties": {"since": {"type": "integer"}, "deep": {"type": ["boolean", "null"]}},
                    "required": ["since"],
                    "additionalProperties": False,
                },
                "either": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
            },
            "required": ["query", "filter"],
            "additionalProperties": False,
        },
    },
}
WIDE = {
    "type": "function",
    "function": {
        "name": "many",
        "parameters": {
            "type": "object",
            "properties": {f"option_{place}": {"type": "integer"} for place in range(48)},
            "additionalProperties": False,
        },
    },
}
GIVEN = [*TOOLS, SEARCH, WIDE]
SCHEMAS = {tool["function"]["name"]: tool["function"].get("parameters", {"type": "object"}) for tool in GIVEN}


def traits_of(name: str) -> TemplateTraits:
    template = ChatTemplate(source=ALL[name].template, special_tokens={"bos_token": "<s>"})
    traits = template.traits()
    template.close()
    return traits


def byte_tokenizer(added: list[str]) -> Tokenizer:
    """A token for each byte, and these."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = tokenizers.Tokenizer(models.BPE({letter: id_ for id_, letter in enumerate(letters)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([STOP, *added])
    return Tokenizer(backend, None, {})


class Writer:
    """Writes random answers under a grammar: any allowed token, and ever more often what may end a call."""

    def __init__(self, traits: TemplateTraits, *, has_added: bool) -> None:
        self.tokenizer = byte_tokenizer(sorted(traits.shown_tokens) if has_added else [])
        self.stop_id = self.tokenizer.id_of_added[STOP]
        size = len(self.tokenizer.vocabulary())
        self.compiler = GrammarCompiler(self.tokenizer, size, [self.stop_id])
        format = traits.call_format
        thought = HARMONY_THOUGHT if format.kind == "harmony" else traits.thought or ()
        ends = [*thought[1:], format.section_end, format.string_mark]
        if format.kind == "tagged":  # where a text ends
            begin = format.parameter_end + format.parameter_begin
            name_end = format.parameter_name_end
            ends += [f"{begin}{key}{name_end}" for schema in SCHEMAS.values() for key in schema.get("required", ())]
            ends += [format.parameter_end + format.arguments_end + format.call_end] * 3
        ends_ids, closers_ids = (
            [self.tokenizer.encode_inside(text) for text in texts if text] for texts in (ends, CLOSERS)
        )
        self.orders = [[end, *closers_ids, *ends_ids] for end in ends_ids] + [closers_ids + ends_ids]

    def answer(self, grammar: Grammar, rng: random.Random, begin: str = "") -> str:
        constraint = self.compiler.compile(grammar)
        written = self.tokenizer.encode_inside(begin)
        constraint.commit(written)
        for num in range(MOST_TOKENS):
            ids = self.piece(constraint, rng, hurry=0.02 + num / FEW_TOKENS / 2)
            if ids == [self.stop_id]:
                return b"".join(map(self.tokenizer.bytes_of, written)).decode()
            constraint.commit(ids)
            written += ids
        raise AssertionError(f"no end: {self.tokenizer.decode(written)}")

    def piece(self, constraint: GrammarConstraint, rng: random.Random, hurry: float) -> list[int]:
        """The next tokens."""
        rows = constraint.masks([0], [-1])
        if rows is None:
            return [self.stop_id]  # behind calls that a mark triggered
        allowed = [id_ for id_ in range(len(rows[0]) * 32) if rows[0][id_ // 32] >> id_ % 32 & 1]
        if self.stop_id in allowed and (len(allowed) == 1 or rng.random() < 0.5):
            return [self.stop_id]
        if rng.random() < hurry:
            order = rng.choice(self.orders)
            for ids in order if rng.random() < hurry - 1 else rng.sample(order, len(order)):
                nodes = [0, *ids]
                if len(constraint.allowed_nodes(nodes, range(-1, len(ids)))) == len(nodes):
                    return ids
        return [rng.choice([id_ for id_ in allowed if id_ != self.stop_id])]


def calls_of(events: list[OutputEvent]) -> list[tuple[str, str]]:
    """Names and arguments of the calls that ended."""
    names = {event.index: event.name for event in events if isinstance(event, CallStarted)}
    texts = {
        index: "".join(event.text for event in events if isinstance(event, CallArguments) and event.index == index)
        for index in names
    }
    ended = [event.index for event in events if isinstance(event, CallEnded)]
    assert ended == list(names)
    return [(names[index], texts[index]) for index in ended]


def check_random_answers(name: str, num_answers: int) -> None:
    traits = traits_of(name)
    writers = [Writer(traits, has_added=has_added) for has_added in (False, True)]
    for number in range(num_answers):
        rng = random.Random(f"{name} {number}")
        writer = writers[number % 2]
        auto = ["auto"] if traits.call_format.first_mark else []
        choice = rng.choice(["required", "required", *auto, *SCHEMAS])
        is_parallel = rng.random() < 0.5
        is_thinking = choice != "auto" and traits.thought is not None and rng.random() < 0.2
        grammar = call_grammar(
            traits, GIVEN, choice=choice, is_parallel=is_parallel, added=writer.tokenizer.id_of_added,
            is_thinking=is_thinking,
        )  # fmt: skip
        assert grammar is not None
        begin, end = traits.thought or ("", "")
        head = traits.call_format.first_mark if choice == "auto" else f"so{end}" if is_thinking else ""
        text = writer.answer(grammar, rng, head)
        parser = OutputParser(traits, tools=GIVEN, rendered_prompt=begin if is_thinking else "", finds_calls=True)
        events = parser.feed(text) + parser.finish()
        calls = calls_of(events)
        assert len(calls) == 1 or (calls and is_parallel), text
        assert not [event for event in events if isinstance(event, Content)], f"content in {text!r}"
        for called, arguments in calls:
            assert choice in (called, "required", "auto"), text
            jsonschema.validate(json.loads(arguments), SCHEMAS[called])


@pytest.mark.parametrize("name", ALL)
def test_what_the_grammar_allows_is_read_as_calls(name: str) -> None:
    check_random_answers(name, 2)


ODD_NAMES = [
    "files/read", "ns:tool", "my tool", "f(x)", "\u540d\u524d", "tool.call", "functions.x", "a:1", "a", "x[ARGS]y",
    "{y}", "=", '"q"', "it's", "my tool 2", "\\",
]  # fmt: skip
ODD_KEYS = [
    "$filter", "@type", "user id", "a/b", "x:y", "a=1", "a", "a b", "\u540d\u524d", "it's", '"k"', "{", "}", ")", "(",
    "[0]", "a,b", "a>b", "", " k ", "\\u0041", "\x7f", "or\nso",
]  # fmt: skip


def check_names(name: str, tool_names: list[str], *, has_added: bool) -> None:
    """Whatever the names of tools and arguments are, a call that the grammar allows is read with them."""
    traits = traits_of(name)
    writer = Writer(traits, has_added=has_added)
    rng = random.Random(name)
    nothing = {"type": "object", "additionalProperties": False}
    keys = {**nothing, "properties": {key: {"enum": [1, 2]} for key in ODD_KEYS}, "required": ODD_KEYS}
    tools = [
        {"type": "function", "function": {"name": tool, "parameters": keys if tool == "keys" else nothing}}
        for tool in [*ODD_NAMES, "keys"]
    ]
    for called in [*tool_names, "keys"]:
        grammar = call_grammar(traits, tools, choice=called, is_parallel=False, added=writer.tokenizer.id_of_added)
        assert grammar is not None
        text = writer.answer(grammar, rng)
        for pieces in ([text], list(text)):
            parser = OutputParser(traits, tools=tools, rendered_prompt="", finds_calls=True)
            events = [event for piece in pieces for event in parser.feed(piece)] + parser.finish()
            ((found, arguments),) = calls_of(events)
            assert found == called, text
            assert list(json.loads(arguments)) == (ODD_KEYS if called == "keys" else [])
            assert not [event for event in events if isinstance(event, Content)], text


@pytest.mark.parametrize(("name", "tool"), in_turn([*ALL], ODD_NAMES))
def test_odd_names_are_read_as_they_are_forced(name: str, tool: str) -> None:
    check_names(name, [tool], has_added=ODD_NAMES.index(tool) % 2 == 0)


def test_an_answer_may_end_with_a_line_behind_its_call() -> None:
    writer = Writer(traits_of("hermes"), has_added=True)
    call = '<tool_call>\n{"name": "plain", "arguments": {}}\n</tool_call>\n'
    tool = {"type": "function", "function": {"name": "plain", "parameters": {"type": "object", "properties": {}}}}
    grammar = call_grammar(
        traits_of("hermes"), [tool], choice="required", is_parallel=True, added=writer.tokenizer.id_of_added
    )
    assert grammar is not None
    constraint = writer.compiler.compile(grammar)
    constraint.commit(writer.tokenizer.encode_inside(call))
    assert constraint.allowed_nodes([0, writer.stop_id], [-1, 0]) == [0, 1]
    more = writer.tokenizer.encode_inside(call)
    assert len(constraint.allowed_nodes([0, *more], range(-1, len(more)))) == len(more) + 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
def test_a_hundred_random_answers_of_each_family_are_read_as_calls(name: str) -> None:
    check_random_answers(name, NUM_ANSWERS)
