"""Outputs of many families are read alike however they are cut into pieces."""

import random

import pytest

from forerun.text.chat_template import ChatTemplate
from forerun.text.output.traits import TemplateTraits
from tests.text.output.families import FAMILIES
from tests.text.output.reading import read

OUTPUTS = [(name, kind) for name, family in FAMILIES.items() for kind in family.outputs]
TRAITS: dict[str, TemplateTraits] = {}


def traits_of(name: str) -> TemplateTraits:
    if name not in TRAITS:
        template = ChatTemplate(source=FAMILIES[name].template, special_tokens={"bos_token": "<s>"})
        TRAITS[name] = template.traits()
        template.close()
    return TRAITS[name]


def cut_at_random(text: str, rng: random.Random) -> list[str]:
    cuts = sorted(rng.choices(range(len(text) + 1), k=rng.randrange(1, 12)))
    return [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]


@pytest.mark.parametrize(("name", "kind"), OUTPUTS)
def test_every_cut_of_an_output_gives_what_it_says(name: str, kind: str) -> None:
    text, expected = FAMILIES[name].outputs[kind]
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
    text, expected = FAMILIES[name].outputs[kind]
    rng = random.Random(kind + name)
    for _ in range(100_000 // len(OUTPUTS) + 1):
        assert read(traits_of(name), cut_at_random(text, rng)) == expected
