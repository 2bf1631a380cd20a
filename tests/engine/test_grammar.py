"""Answers held to a grammar: valid, and the same with every drafter."""

import json
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jsonschema
import pytest

from forerun import (
    Automatic,
    ConfigError,
    DraftModel,
    Engine,
    EngineConfig,
    FinishReason,
    Grammar,
    GrammarError,
    LayerSkip,
    NoDrafter,
    Parallel,
    PromptLookup,
    SamplingParams,
    TokenRecycling,
)
from tests.marks import rest_slow

DRAFT = DraftModel(model="builtin-draft")
LOCAL = (DRAFT, PromptLookup(), TokenRecycling(), LayerSkip(), Automatic())
ALL = (*LOCAL, Parallel(draft=DRAFT))
PROMPTS = ("def area(w, h):\n", '{"name": "Ada", "age": 36}\n', "class Stack:\n    pass\n", "x")
PATTERNS = (
    r"[a-z]{3,12}",
    r"(ab|a)*c{2}",
    r"\d{3}-\d{4}",
    r"(foo|bar)( (foo|bar)){0,5}",
    r"[^a-f\n]{5,20}",
    r"é+|日本(語)?",
)
CHOICES = (("yes", "no"), ("a", "ab", "abc"), ("ein Satz.", "zwei\nZeilen", 'drei "Worte"'), ("1", "12", "é"))
SUMS = """start: sum
sum: NUMBER (("+" | "-") NUMBER)~0..4
NUMBER: /[1-9][0-9]{0,3}/
"""
MOST_TOKENS = 160


@dataclass(frozen=True, kw_only=True)
class Case:
    """A request, and what its answer must be if it is complete."""

    prompt: str
    params: SamplingParams
    check: Callable[[str], object]


def random_schema(rng: random.Random, depth: int = 0) -> dict[str, Any]:
    """A schema of the kinds that JSONSchemaBench (arXiv 2501.10868) counts most often, with short texts."""
    kinds = ["string", "integer", "number", "boolean", "null", "enum", "const", "pattern", "format"]
    kind = rng.choice(kinds + ["object", "array", "anyOf", "object"] * (depth < 3))
    match kind:
        case "string":
            return {"type": "string", "maxLength": rng.randint(1, 12), "minLength": rng.choice([0, 1])}
        case "integer":
            low = rng.randint(-1000, 1000)
            return {"type": "integer", "minimum": low, "maximum": low + rng.choice([0, 7, 5000])}
        case "number":
            return {"type": "number", "minimum": -5, "exclusiveMaximum": rng.choice([0.5, 100])}
        case "enum":
            return {"enum": rng.sample(["red", "green", "blue", 1, 2.5, None, True, "é"], rng.randint(1, 5))}
        case "const":
            return {"const": rng.choice(["v1", 7, {"a": 1}, ["x"]])}
        case "pattern":
            return {
                "type": "string",
                "pattern": rng.choice(["^[a-z]{1,8}$", r"^\d{4}-\d{2}$", "^(a|b)+$"]),
                "maxLength": 9,
            }
        case "format":
            return {"type": "string", "format": rng.choice(["date", "uuid", "ipv4", "time"])}
        case "array":
            return {"type": "array", "items": random_schema(rng, depth + 1), "maxItems": rng.randint(0, 3)}
        case "anyOf":
            return {"anyOf": [random_schema(rng, depth + 1) for _ in range(rng.randint(1, 3))]}
        case "object":
            names = rng.sample(["id", "name", "kind", "value", "created_at", "is_open", "größe"], rng.randint(0, 4))
            needed = [name for name in names if rng.random() < 0.7]
            properties = {name: random_schema(rng, depth + 1) for name in names}
            return {"type": "object", "properties": properties, "required": needed, "additionalProperties": False}
        case _:
            return {"type": kind}


def random_case(number: int) -> Case:
    rng = random.Random(number)
    match rng.choice(["schema", "schema", "schema", "regex", "choice", "sums"]):
        case "schema":
            schema = random_schema(rng)
            if rng.random() < 0.1:
                schema = {"$defs": {"node": schema}, "type": "object", "properties": {"n": {"$ref": "#/$defs/node"}},
                          "required": ["n"], "additionalProperties": False}  # fmt: skip
            grammar = Grammar.json_schema(schema)
            check: Callable[[str], object] = lambda text: jsonschema.validate(json.loads(text), schema)  # noqa: E731
        case "regex":
            pattern = rng.choice(PATTERNS)
            grammar, check = Grammar.regex(pattern), lambda text: fits(re.compile(pattern), text)
        case "choice":
            texts = rng.choice(CHOICES)
            grammar = Grammar.choice(texts)
            check = texts.index
        case _:
            grammar, check = (
                Grammar.lark(SUMS),
                lambda text: fits(re.compile(r"[1-9]\d{0,3}([+-][1-9]\d{0,3}){0,4}"), text),
            )
    if grammar.kind != "lark" and rng.random() < 0.2:  # behind thoughts, which end with the first line
        grammar = Grammar(kind=grammar.kind, text=grammar.text, after="\n")
        of_answer, check = check, lambda text: of_answer(text.partition("\n")[2].lstrip())
    temperature = rng.choice([0.0, 0.0, 0.7, 1.0])
    params = SamplingParams(
        max_new_tokens=MOST_TOKENS,
        temperature=temperature,
        seed=rng.randrange(2**40),
        top_p=rng.choice([1.0, 0.9]) if temperature else 1.0,
        min_p=rng.choice([0.0, 0.05]) if temperature else 0.0,
        repetition_penalty=rng.choice([1.0, 1.0, 1.2]),
        grammar=grammar,
    )
    return Case(prompt=rng.choice(PROMPTS), params=params, check=check)


def fits(pattern: re.Pattern[str], text: str) -> None:
    assert pattern.fullmatch(text), f"{text!r} is not {pattern.pattern}"


def opened(drafter: Any) -> Engine:
    return Engine(EngineConfig(drafter=drafter, max_length=512))


@pytest.fixture(scope="module")
def plain() -> Iterator[Engine]:
    with opened(NoDrafter()) as engine:
        yield engine


def check_cases(plain: Engine, drafters: tuple[Any, ...], numbers: range) -> int:
    """Compare every drafter's answers with plain ones, and these with the grammar; return how many were complete."""
    expected = []
    num_complete = 0
    for number in numbers:
        case = random_case(number)
        answer = plain.generate(case.prompt, case.params)
        if answer.finish_reason is FinishReason.STOP:
            case.check(answer.text)
            num_complete += 1
        expected.append(answer.token_ids)
    for drafter in drafters:
        with opened(drafter) as engine:
            for number, token_ids in zip(numbers, expected, strict=True):
                case = random_case(number)
                found = engine.generate(case.prompt, case.params).token_ids
                assert found == token_ids, f"case {number} with {drafter}"
    return num_complete


@pytest.mark.parametrize("numbers", rest_slow([range(1000, 1006), range(10)], 1), ids=str)
def test_the_same_valid_text_with_every_drafter(plain: Engine, numbers: range) -> None:
    assert check_cases(plain, LOCAL, numbers) > len(numbers) // 2


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(10))
def test_many_cases(plain: Engine, chunk: int) -> None:
    """5,000 comparisons: 834 requests with each of six drafters."""
    assert check_cases(plain, ALL, range(1000 + chunk * 84, 1000 + (chunk + 1) * 84)) > 60


def test_a_trigger_constrains_only_what_follows_it(plain: Engine) -> None:
    grammar = Grammar(kind="regex", text=r"[0-9]{3};", trigger="(")
    num_held = 0
    with opened(Automatic()) as engine:
        for seed in range(5):
            params = SamplingParams(max_new_tokens=120, temperature=1.0, seed=seed, grammar=grammar)
            answer = plain.generate("def area(w, h):\n", params)
            assert not re.match(r"[0-9]{3};", answer.text), "it holds from the start"
            pieces = [plain.tokenizer.decode([id_]) for id_ in answer.token_ids]
            behind = ["".join(pieces[place:]) for place, piece in enumerate(pieces, start=1) if piece.endswith("(")]
            assert all(re.match(r"[0-9]{3};", text) for text in behind if len(text) > 3), answer.text
            num_held += len(behind)
            assert engine.generate("def area(w, h):\n", params).token_ids == answer.token_ids
    assert num_held > 3


def test_forced_tokens_are_drafted(plain: Engine) -> None:
    schema = {
        "type": "object",
        "properties": {"a_rather_long_name": {"type": "boolean"}},
        "required": ["a_rather_long_name"],
    }
    params = SamplingParams(max_new_tokens=60, grammar=Grammar.json_schema(schema))
    with opened(PromptLookup(adaptive=False)) as engine:  # whatever passes take
        answer = engine.generate("x = 1\n", params)
    assert answer.text == plain.generate("x = 1\n", params).text
    assert answer.stats.num_rounds < answer.stats.num_new_tokens / 2


def test_logprobs_are_the_raw_ones(plain: Engine) -> None:
    params = SamplingParams(max_new_tokens=5, logprobs=3, grammar=Grammar.choice(["zebra"]))
    step = next(iter(plain.stream("def f", params)))
    assert step.logprobs[0].logprob < -1.0


@pytest.mark.parametrize(
    ("grammar", "fault"),
    [
        (Grammar.json_schema({"type": "array", "uniqueItems": True}), "uniqueItems"),
        (Grammar.json_schema({"type": "string", "minLength": 5, "maxLength": 3}), "minLength"),
        (Grammar.json_schema("{"), "cannot be read"),
        (Grammar.json_schema("[]"), "a schema is an object"),
        (Grammar.json_schema(False), "a schema is an object"),
        (Grammar.json_schema('{"a":' * 5000 + "1" + "}" * 5000), "cannot be"),
        (Grammar.json_schema({"enum": ["x" * 100] * 10_000}), "characters"),
        (Grammar.regex("(?=x)a"), "look-around"),
        (Grammar.lark("start: missing"), "missing"),
    ],
)
def test_what_cannot_be_compiled_is_refused_with_its_reason(plain: Engine, grammar: Grammar, fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        plain.require_grammar(grammar)


def test_a_dead_end_is_an_error(plain: Engine) -> None:
    params = SamplingParams(max_new_tokens=20, grammar=Grammar.lark('start: "a" DEAD\nDEAD: /b/ & /c/'))
    with pytest.raises((GrammarError, ConfigError)):
        plain.generate("x", params)
    assert plain.generate("x", SamplingParams(max_new_tokens=3)).text


def test_ignore_eos_is_refused() -> None:
    with pytest.raises(ConfigError, match="ignore_eos"):
        SamplingParams(ignore_eos=True, grammar=Grammar.json_object())
