"""transformers writes what our engine writes, whichever way it decodes."""

import random
from dataclasses import replace
from pathlib import Path

import pytest

from forerun.checkpoints.open import open_source
from forerun_lab.bench.peers.messages import PeerError
from tests.bench.peers.pairs import GREEDY, Pair, check_peer, opened
from tests.drafting.mapped import random_map, write_mapped

pytestmark = pytest.mark.slow


def test_plain_decoding_writes_our_ids_one_at_a_time(pair: Pair) -> None:
    with opened("transformers", pair.plan) as peer:
        assert set(check_peer(peer, pair)) == {1}


@pytest.mark.parametrize("name", ["transformers_assisted", "transformers_lookup"])
def test_guessing_writes_our_ids_and_tells_the_tokens_of_each_round(pair: Pair, name: str) -> None:
    with opened(name, pair.plan) as peer:
        assert max(check_peer(peer, pair)) > 1


def test_settings_reach_the_assistant(pair: Pair) -> None:
    settings = {"num_assistant_tokens": 2, "assistant_confidence_threshold": 0.0}
    with opened("transformers_assisted", pair.plan, **settings) as peer:
        assert max(check_peer(peer, pair)) == 3


def test_a_draft_with_a_part_of_the_tokens_is_refused(pair: Pair, tmp_path: Path) -> None:
    source = open_source("builtin-draft")
    small = write_mapped(
        tmp_path / "small", source.path, random_map(random.Random(1), source.spec().vocab_size, num_draft=512)
    )
    refused = pytest.raises(PeerError, match="cannot use a draft with only a part of the target's tokens: give another")
    with refused, opened("transformers_assisted", replace(pair.plan, draft=str(small))):
        pass


@pytest.mark.parametrize("name", ["transformers_static", "transformers_static_compile"])
def test_a_static_cache_writes_our_ids(pair: Pair, name: str) -> None:
    with opened(name, pair.plan) as peer:
        texts = [peer.write(prompt, GREEDY).token_ids for prompt in pair.prompts]
    assert texts == list(pair.expected)
