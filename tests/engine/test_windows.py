"""A conversation with a model that has windows: turns, cut back and resumed, as an engine plays them."""

import json
import random
import shutil
from pathlib import Path

import pytest

from forerun import DraftModel, Engine, EngineConfig, LayerSkip, NoDrafter, PromptLookup, SamplingParams
from tests.sliding import lose_early

WINDOW = 12
Turn = tuple[list[int], SamplingParams, str]


@pytest.fixture(scope="module")
def windowed(target: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The tests' target with a short window in all layers but the first."""
    folder = tmp_path_factory.mktemp("windowed") / "target"
    shutil.copytree(target, folder)
    path = Path(folder) / "config.json"
    config = json.loads(path.read_text())
    config.pop("layer_types", None)
    config |= {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1}
    path.write_text(json.dumps(config))
    return str(folder)


def turns_of(plain: Engine) -> tuple[list[Turn], list[tuple[int, ...]]]:
    """Prompts that go on from texts, or cut them back, and the plain texts."""
    rng = random.Random(1)
    turns = list[Turn]()
    texts = list[tuple[int, ...]]()
    words = plain.encode("the cat sat on the mat and the cat " * 5)
    for number, part in enumerate([1.0, 1.0, 0.7, 1.0, 0.2, 0.95]):
        before = [*turns[-1][0], *texts[-1]] if turns else []
        prompt = [*before[: int(part * len(before))], *rng.choices(words, k=20)]
        params = SamplingParams(temperature=number % 2, seed=number, max_new_tokens=15, ignore_eos=True)
        turns.append((prompt, params, "ann" if number == 5 else ""))
        plain.forget()
        texts.append(plain.generate(prompt, params).token_ids)
    return turns, texts


def test_every_turn_has_the_plain_text_and_as_much_is_reused_with_every_drafter(
    windowed: str, draft: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Engine(EngineConfig(target=windowed, drafter=NoDrafter(), dtype="float32")) as plain:
        turns, texts = turns_of(plain)
    lose_early(monkeypatch, margin=40, step=4)
    drafters = (NoDrafter(), DraftModel(model=draft), PromptLookup(adaptive=False), LayerSkip(adaptive=False))
    reused = set[tuple[int, ...]]()
    for drafter in drafters:
        with Engine(EngineConfig(target=windowed, drafter=drafter, dtype="float32")) as engine:
            results = [engine.generate(prompt, params, owner=owner) for prompt, params, owner in turns]
        assert [result.token_ids for result in results] == texts
        reused.add(tuple(result.stats.num_reused_tokens for result in results))
    (known,) = reused
    assert known[1] > 0
    assert known[4] == 0, "the text was cut back too far to be resumed"
