"""Outputs of many families are read alike however they are cut into pieces."""

import json
import random

import pytest

from forerun.text.chat_template import ChatTemplate
from forerun.text.output.traits import TemplateTraits
from tests.text.output.families import FAMILIES
from tests.text.output.loose_families import LOOSE_FAMILIES
from tests.text.output.reading import read

ALL = FAMILIES | LOOSE_FAMILIES
OUTPUTS = [(name, kind) for name, family in ALL.items() for kind in family.outputs]
TRAITS: dict[str, TemplateTraits] = {}


def traits_of(name: str) -> TemplateTraits:
    if name not in TRAITS:
        template = ChatTemplate(source=ALL[name].template, special_tokens={"bos_token": "<s>"})
        TRAITS[name] = template.traits()
        template.close()
    return TRAITS[name]


def cut_at_random(text: str, rng: random.Random) -> list[str]:
    cuts = sorted(rng.choices(range(len(text) + 1), k=rng.randrange(1, 12)))
    return [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]


@pytest.mark.parametrize(("name", "kind"), OUTPUTS)
def test_every_cut_of_an_output_gives_what_it_says(name: str, kind: str) -> None:
    text, expected = ALL[name].outputs[kind]
    traits = traits_of(name)
    assert read(traits, [text]) == expected
    assert read(traits, list(text)) == expected
    for place in range(len(text)):
        assert read(traits, [text[:place], text[place:]]) == expected
    rng = random.Random(name + kind)
    for _ in range(1000 // len(OUTPUTS) + 1):
        assert read(traits, cut_at_random(text, rng)) == expected


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind"), OUTPUTS)
def test_a_hundred_thousand_cuts_give_the_same(name: str, kind: str) -> None:
    text, expected = ALL[name].outputs[kind]
    rng = random.Random(kind + name)
    for _ in range(100_000 // len(OUTPUTS) + 1):
        assert read(traits_of(name), cut_at_random(text, rng)) == expected


@pytest.mark.parametrize("name", ALL)
def test_a_call_of_no_given_tool_is_content(name: str) -> None:
    text = ALL[name].outputs["one"][0].replace("weather", "nobody")
    found = "".join(part for part in read(traits_of(name), [text]) if isinstance(part, str))
    assert found.strip() == (text if name != "gpt_oss" else '{"city": "Ro\\"me", "days": 3}')


@pytest.mark.parametrize(("name", "kind"), OUTPUTS)
def test_of_damaged_calls_nothing_is_lost_and_only_whole_ones_end(name: str, kind: str) -> None:
    text = ALL[name].outputs[kind][0]
    traits = traits_of(name)
    rng = random.Random(f"{kind} {name}")
    for _ in range(40):
        start = rng.randrange(len(text))
        num = rng.randrange(1, 9)
        damaged = text[:start] + rng.choice(["", text[-num:], "<", '"', "}"]) + text[start + num :]
        found = read(traits, [damaged])
        assert found == read(traits, list(damaged))
        calls = [part for part in found if isinstance(part, tuple) and part[0] != "thought"]
        for called, arguments in (call for call in calls if len(call) == 2):
            assert called in ("weather", "get-time")
            assert isinstance(json.loads(arguments), dict)
        assert calls or "".join(said[-1] if isinstance(said, tuple) else said for said in found)
