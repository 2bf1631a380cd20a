"""The target's network over many texts, what it writes and reads, and the store that keeps it."""

import random
from collections.abc import Iterator
from itertools import repeat
from pathlib import Path

import pytest
import torch
from torch import Tensor

from forerun.backends.torch.backend import REFERENCE
from forerun.checkpoints.open import open_source
from forerun.model.runner import Runner
from forerun_lab.distill.network import Network, TextCache, read_network
from forerun_lab.distill.reader import read_texts
from forerun_lab.distill.text_store import TextStore
from forerun_lab.distill.writer import Opening, TextWriter, UnfinishedText, WrittenText
from tests.golden.families import FAMILIES
from tests.tiny import plain_spec

MAX_ERROR = 1e-5  # of float32
STOPS = (7,)


def network_of(folder: Path) -> Network:
    source = open_source(str(folder))
    return read_network(source.spec(), source.weights(dtype=torch.float32)).requires_grad_(False)


def runner_of(folder: Path) -> Runner:
    source = open_source(str(folder))
    weights = source.weights(dtype=torch.float32)
    return Runner(source.spec(), weights, backend=REFERENCE, capacity=128, dtype=torch.float32, device="cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return FAMILIES["llama3.2"].save(tmp_path_factory.mktemp("model")).folder


@pytest.fixture(scope="module")
def network(folder: Path) -> Network:
    return network_of(folder)


def some_ids(seed: int, length: int) -> list[int]:
    return [random.Random(f"{seed} {place}").randrange(131) for place in range(length)]


@pytest.mark.parametrize("name", ["llama2", "llama3.2", "llama_biased", "qwen2", "qwen2.5", "qwen3"])
@torch.inference_mode()
def test_scores_of_texts_of_several_lengths_are_those_of_the_engine(name: str, tmp_path: Path) -> None:
    folder = FAMILIES[name].save(tmp_path).folder
    network = network_of(folder)
    texts = [some_ids(seed, 20 + 9 * seed) for seed in range(3)]
    runner = runner_of(folder)
    cache = TextCache(network.spec, num_texts=3, num_slots=64, dtype=torch.float32, device="cpu")
    begin = min(map(len, texts)) - 3
    network.hidden(torch.tensor([text[:begin] for text in texts]), cache)
    cache.lengths.copy_(torch.tensor([begin - 4, begin - 2, begin]))  # what lies behind a text's end is written over
    rows = [text[length : length + 3] for text, length in zip(texts, cache.lengths.tolist(), strict=True)]
    found = network.logits(network.hidden(torch.tensor(rows), cache))
    for text, length, scores in zip(texts, (begin - 4, begin - 2, begin), found, strict=True):
        runner.forget()
        runner.sync(text[:length])
        expected = runner.extend(text[length : length + 3], num_logit_rows=3)
        assert (scores - expected).abs().max() <= MAX_ERROR


@torch.inference_mode()
def test_texts_beside_much_longer_ones_have_the_scores_that_they_have_alone(network: Network) -> None:
    lengths = [2, 30, 3, 4, 50, 5, 6, 7, 8, 9, 11, 12, 13, 14, 15, 60]
    texts = [some_ids(seed, length + 2) for seed, length in enumerate(lengths)]
    cache = TextCache(network.spec, num_texts=len(texts), num_slots=64, dtype=torch.float32, device="cpu")
    network.hidden(torch.tensor([(text * 32)[:60] for text in texts]), cache)
    cache.lengths.copy_(torch.tensor(lengths))
    found = network.hidden(torch.tensor([text[-2:] for text in texts]), cache)
    for number, text in enumerate(texts):
        alone = network.hidden(torch.tensor([text]))[0, -2:]
        assert torch.allclose(found[number], alone, atol=MAX_ERROR), f"text {number} of {len(text)} tokens"


@pytest.mark.parametrize(("longest", "num_alone"), [(4, 0), (5, 1)])
def test_only_texts_that_are_longer_than_the_others_are_computed_alone(longest: int, num_alone: int) -> None:
    cache = TextCache(plain_spec(), num_texts=8, num_slots=16, dtype=torch.float32, device="cpu")
    cache.lengths.copy_(torch.tensor([4, 4, longest, 3, 4, 4, 4, 4]))
    cache.make_room(1)
    assert len(cache._long) == num_alone


def greedy(folder: Path, ids: list[int], length: int) -> list[int]:
    """The text that the engine's passes write, up to a stop."""
    runner = runner_of(folder)
    ids = list(ids)
    with torch.inference_mode():
        while len(ids) < length:
            runner.forget()
            token = int(runner.extend(ids, num_logit_rows=1)[0].argmax())
            if token in STOPS:
                break
            ids.append(token)
    return ids


def openings_of(prompts: list[list[int]], length: int) -> Iterator[Opening]:
    for prompt in prompts:
        yield Opening(token_ids=tuple(prompt), temperature=0.0, length=length)
    yield from repeat(Opening(token_ids=(1,), temperature=1.0, length=8))


def writer_of(network: Network, openings: Iterator[Opening], **more: object) -> TextWriter:
    return TextWriter(network, openings, stop_ids=STOPS, num_texts=3, num_slots=64, seed=1, **more)  # type: ignore[arg-type]


def written(writer: TextWriter, num_texts: int) -> list[WrittenText]:
    texts: list[WrittenText] = []
    while len(texts) < num_texts:
        texts += writer.step()
    return texts


@pytest.mark.parametrize("prefix", [(), tuple(some_ids(9, 6))])
def test_the_writer_writes_what_the_engine_would_and_keeps_what_a_reader_finds(
    folder: Path, network: Network, prefix: tuple[int, ...]
) -> None:
    prompts = [[*prefix, *some_ids(seed, 3 + seed)] for seed in range(5)]
    prompts.append(some_ids(77, 5))  # it does not begin with the prefix
    texts = written(writer_of(network, openings_of(prompts, 24), prefix=prefix), 12)
    for prompt in prompts:
        text = next(text for text in texts if text.token_ids[: len(prompt)].tolist() == prompt)
        assert text.token_ids.tolist() == greedy(folder, prompt, 24)
        assert text.num_given == len(prompt)
        (read,) = read_texts(network, [(text.token_ids.tolist(), len(prompt))])
        rows = slice(text.first_row, None)
        assert torch.equal(read.top_ids[rows], text.top_ids[rows])
        assert (read.top_log_probs[rows] - text.top_log_probs[rows]).abs().max() < 0.02  # of float16


def test_a_users_turn_ends_with_what_opens_the_answer(network: Network) -> None:
    turn = (7, 11, 12)
    opening = Opening(token_ids=(3, 4), turn=turn, temperature=0.6, length=60)
    for text in written(writer_of(network, repeat(opening)), 6):
        ids = text.token_ids.tolist()
        place = ids.index(7) if 7 in ids else -1
        assert ids[place : place + 3] == list(turn)
        assert len(ids) <= 60


def test_texts_that_were_left_go_on_as_they_would_have(network: Network, tmp_path: Path) -> None:
    prompts = [some_ids(seed, 4 + 5 * seed) for seed in range(3)]
    prefix = prompts[2][:5]  # which the last text has not to read, so that it is ahead of the others
    through, left = (writer_of(network, openings_of(prompts, 40), prefix=prefix) for _ in range(2))
    expected = {tuple(text.token_ids.tolist()) for text in written(through, 3)[:3]}
    for _ in range(9):
        assert left.step() == []
    store = TextStore(tmp_path)
    store.add([], 1.0, left.unfinished())
    again = writer_of(network, openings_of([], 40), unfinished=TextStore(tmp_path).unfinished())
    assert {tuple(text.token_ids.tolist()) for text in written(again, 3)[:3]} == expected


def some_text(seed: int, num_given: int, length: int = 6) -> WrittenText:
    tops = torch.randn(length, 4, generator=torch.Generator().manual_seed(seed))
    ids = torch.tensor(some_ids(seed, length), dtype=torch.int32)
    return WrittenText(token_ids=ids, num_given=num_given, top_ids=tops.int(), top_log_probs=tops.half())


def left_text(text: WrittenText) -> UnfinishedText:
    opening = Opening(token_ids=(1, 2), turn=(3,), temperature=0.6, length=9)
    return UnfinishedText(read=text, opening=opening, ids=(1, 2, 5), is_users=True)


def same(left: Tensor, right: Tensor) -> bool:
    return left.dtype == right.dtype and torch.equal(left, right)


def test_the_store_gives_back_what_it_was_given(tmp_path: Path) -> None:
    texts = [some_text(1, 2), some_text(2, 0, length=1), some_text(3, 9)]  # the last has no row to learn from
    store = TextStore(tmp_path)
    store.add(texts, 2.5, [left_text(some_text(4, 2))])
    store.add([], 0.5, [left_text(some_text(5, 2)), left_text(some_text(6, 2))])
    again = TextStore(tmp_path)
    assert (again.seconds, again.num_texts, again.num_files) == (3.0, 2, 2)
    for found, given in zip(again.read(), texts, strict=False):
        assert same(found.token_ids, given.token_ids)
        assert same(found.top_ids, given.top_ids)
        assert same(found.top_log_probs, given.top_log_probs)
        assert found.num_given == given.num_given
    assert [left.read.token_ids.tolist() for left in again.unfinished()] == [some_ids(5, 6), some_ids(6, 6)]
    assert again.unfinished()[0].opening == left_text(some_text(5, 2)).opening
    assert list(again.known_ids()) == [tuple(some_ids(1, 6)), tuple(some_ids(2, 1))]
