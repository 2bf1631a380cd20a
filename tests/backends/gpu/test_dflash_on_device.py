"""Rounds on the device with a DFlash head or a successor: each accepts what the host's loop does with the same head."""

import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from forerun.core.config import SamplingParams
from forerun.core.drafter_config import DraftHead
from forerun.drafting.heads import dflash_network as heads
from forerun.drafting.heads.dflash_network import DFlashExecutor
from forerun.drafting.policies import TreePolicy
from tests.drafting.heads.dflash_reference import dflash_outputs, logits_after
from tests.drafting.heads.random_heads import dflash_head, dflash_tensors, random_body, random_dflash
from tests.marks import rest_slow

pytest.importorskip("triton")

from forerun.backends.gpu.dflash_on_device import DFlashOnDevice
from forerun.backends.gpu.tree.device_tree import DeviceTree
from tests.backends.gpu.test_decoder import CAPACITY, FILTERED, GREEDY, PENALISED, SAMPLED
from tests.backends.gpu.test_heads_on_device import KNOWN, TEXT, VOCAB, Depths, Headed

# No token can follow the last predicted one, so that such rows have no largest score in the interpreter's numpy.
pytestmark = pytest.mark.filterwarnings("ignore:invalid value encountered")

WIDTH = 4  # nodes of a batch
CLOSE = 1e-4  # of logits in float32
OTHERS = {"conv_kernel": 0, "pair_rank": 0, "markov_rank": 0}
DFLASH: dict[str, Any] = {"windows": (None,), "is_causal": (False,), **OTHERS}
NARROW: dict[str, Any] = {"windows": (3, 4), "is_causal": (False, True), **OTHERS}
PAIRS: dict[str, Any] = {**DFLASH, "conv_kernel": 2, "conv_group": 2, "pair_rank": 4, "num_pairs": 3}
SHIFTED: dict[str, Any] = {**DFLASH, "markov_rank": 4, "has_markov_gate": True, "drafts_from_root": True}


@pytest.fixture(autouse=True)
def _as_in_an_engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(heads, "BATCH", 2)  # so few that a node waits for others
    with torch.inference_mode():
        yield


class DFlashHeaded(Headed):
    """With a DFlash head."""

    def __init__(
        self, seed: int, device: str, *, known: Sequence[int] | None = None, num_layers: int = 1,
        verify_width: int = 6, looks_up: bool = False, **fields: Any,
    ) -> None:  # fmt: skip
        config = DraftHead(model="-", verify_width=verify_width, adaptive=False)
        super().__init__(seed, device, config, num_layers=num_layers, known=known)
        self.policy = TreePolicy(looks_up=looks_up)
        rng = random.Random(seed)
        if "windows" in fields:
            fields["body"] = random_body(rng, vocab_size=self.num_columns, num_layers=len(fields["windows"]))
        self.block = random_dflash(rng, self.spec, **{"block_size": 4, **fields})
        self.tensors = {name: value.float() for name, value in dflash_tensors(self.block, self.spec, seed).items()}
        if known is not None:
            self.tensors["lm_head.weight"] = self.tensors["lm_head.weight"][list(known)]

    def drafter_of(self) -> heads.DFlashDrafter:
        head = dflash_head(self.block, self.here)
        block = self.block
        runner = self.runner(block.body, block.block_size, lambda cache: DFlashExecutor(head, cache))
        return heads.DFlashDrafter(
            runner, self.config, self.policy, target_vocab_size=VOCAB, taps=block.taps(self.spec.num_layers),
            vocabulary=self.vocabulary,
        )  # fmt: skip

    def on_device(self) -> tuple[DFlashOnDevice, DeviceTree]:
        plan = self.drafter_of().round_plan
        assert plan is not None
        assert plan.draft is not None
        tree = DeviceTree(
            verify_width=6, draft_width=WIDTH, num_children=2, min_mass=0.0, device=self.device, follows=True
        )
        return DFlashOnDevice(plan.draft, plan, tree, self.plain_target()), tree


CASES = [
    pytest.param(33, PAIRS, SAMPLED, id="pairs, sampled"),
    pytest.param(6, SHIFTED, FILTERED, id="shifted, filtered", marks=pytest.mark.slow),
    pytest.param(5, NARROW, SAMPLED, id="windows, causal, sampled", marks=pytest.mark.slow),
    pytest.param(16, NARROW, GREEDY, id="windows, causal, greedy", marks=pytest.mark.slow),
    pytest.param(0, DFLASH, SAMPLED, id="sampled", marks=pytest.mark.slow),
    pytest.param(11, DFLASH, FILTERED, id="filtered", marks=pytest.mark.slow),
    pytest.param(16, DFLASH, PENALISED, id="penalised", marks=pytest.mark.slow),
    pytest.param(19, PAIRS, GREEDY, id="pairs, greedy", marks=pytest.mark.slow),
    pytest.param(40, PAIRS, PENALISED, id="pairs, penalised", marks=pytest.mark.slow),
    pytest.param(22, PAIRS, FILTERED, id="pairs, filtered", marks=pytest.mark.slow),
    pytest.param(22, SHIFTED, GREEDY, id="shifted, greedy", marks=pytest.mark.slow),
    pytest.param(6, SHIFTED, PENALISED, id="shifted, penalised", marks=pytest.mark.slow),
    pytest.param(0, {**DFLASH, "looks_up": True}, SAMPLED, id="looked up, sampled", marks=pytest.mark.slow),
    pytest.param(6, {**SHIFTED, "known": KNOWN}, SAMPLED, id="shifted, part, sampled", marks=pytest.mark.slow),
    pytest.param(18, {**DFLASH, "num_layers": 2}, SAMPLED, id="two layers, sampled", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("seed", "fields", "params"), CASES)
def test_rounds_accept_what_those_of_the_hosts_loop_do(
    seed: int, fields: dict[str, Any], params: SamplingParams, device: str
) -> None:
    headed = DFlashHeaded(seed, device, **fields)
    found = headed.rounds(headed.decoder(), TEXT, params, 6)
    assert [token for tokens in found for token in tokens][:6] == headed.plain(TEXT, params, 6)
    assert found == headed.rounds(headed.host_decoder(), TEXT, params, 6)
    assert sum(len(tokens) - 1 for tokens in found) > 2, "where little is accepted, little is read"


def test_the_heads_cache_holds_all_committed_tokens(device: str) -> None:
    """Also those of rounds without a draft, and in a second request."""
    headed = DFlashHeaded(33, device, verify_width=4, **DFLASH)
    decoder = headed.decoder()
    decoder._referee = Depths(0, 2, 0, *[2] * 9)  # type: ignore[assignment]
    found = headed.rounds(decoder, TEXT[:3], SAMPLED, 5)
    text = [*TEXT[:3], *(token for tokens in found for token in tokens)]
    draft = decoder._rounds.draft
    assert isinstance(draft, DFlashOnDevice)
    num_tokens = len(draft.runner.cached_ids)
    assert num_tokens > 5
    assert draft.runner.cached_ids == text[:num_tokens]
    fresh, _ = headed.on_device()
    features = headed.plain_target().append(text[:num_tokens], num_logit_rows=0, taps=fresh.taps).features
    assert features is not None
    fresh.read_features(0, features)
    assert torch.allclose(draft.kept[:, :, :num_tokens], fresh.kept[:, :, :num_tokens], atol=CLOSE)
    assert bool(draft._executor.is_known_S[:num_tokens].all())


class Drafted:
    """A random head on the device with a text, of which it knows some features."""

    def __init__(self, seed: int, device: str, **fields: Any) -> None:
        rng = self.rng = random.Random(seed)
        self.headed = DFlashHeaded(seed, device, num_layers=rng.randint(1, 2), block_size=rng.randint(2, 6), **fields)
        self.draft, self.tree = self.headed.on_device()
        self.arrays = {name: tensor.double().numpy() for name, tensor in self.headed.tensors.items()}
        self.text = self.tokens(rng.randint(1, 16))
        self.known = set[int]()
        shape = CAPACITY, len(self.draft.taps), self.headed.spec.hidden_size
        self.features = torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(device)

    def tokens(self, number: int) -> list[int]:
        return [self.rng.randrange(VOCAB) for _ in range(number)]

    def start_request(self, first: int) -> None:
        """A request in which the target reads the text from a place on."""
        before = self.text[:-1]
        self.draft.start_request(before, "")
        if first < len(before):
            self.draft.read_features(first, self.features[first : len(before)])
        self.draft.catch_up(before)
        self.known |= set(range(first, len(before)))

    def check_round(self) -> None:
        """Random nodes have the logits of the reference, in the first pass and in another."""
        root = len(self.text) - 1
        spec = self.headed.block
        self.tree.reset(root=self.text[-1], committed=root, draft_committed=root)
        columns = [self.draft.taps.index(layer) for layer in spec.taps(2)]
        features = {place: self.features[place, columns].double().cpu().numpy() for place in self.known}
        outputs = dflash_outputs(spec, self.arrays, self.text[-1], root, features)
        for first_row in (1, 0):
            depths = [self.rng.randrange(spec.block_size + 1) for _ in range(WIDTH)]
            parents = self.tokens(WIDTH)
            rows = slice(first_row, first_row + WIDTH)
            if first_row:  # the root is the first of a round
                depths[0] = 0
                parents[0] = self.text[-1]
            self.draft.rows.positions[rows] = root + torch.tensor(depths, dtype=torch.int32)
            self.draft.rows.token_ids[rows] = torch.tensor(parents, dtype=torch.int32)
            self.draft.pass_layers(rows.stop, 0)
            self.draft.write_scores(rows.stop, first_row)
            for row, (depth, parent) in enumerate(zip(depths, parents, strict=True)):
                found = self.draft.score_rows.scores[row].double().cpu().numpy()
                expected = logits_after(spec, self.arrays, outputs, depth, parent)
                if root - 1 not in self.known:
                    expected = np.full_like(expected, -np.inf)
                assert np.array_equal(np.isfinite(found), np.isfinite(expected))
                is_there = np.isfinite(expected)
                assert np.abs(found[is_there] - expected[is_there]).max(initial=0.0) <= CLOSE

    def accept(self) -> None:
        """The target verified six nodes, and some of them are accepted."""
        root = len(self.text) - 1
        path = sorted(self.rng.sample(range(1, 6), self.rng.randint(0, 3)))
        places = [root, *[root + 2] * 5]
        for depth, node in enumerate(path, 1):
            places[node] = root + depth
        places_R = torch.tensor(places, device=self.features.device)
        self.draft.keep_features(self.features[places_R], root + torch.arange(6).to(places_R), places_R)
        kept = self.draft.kept
        kept[:, :, root + 1 : root + 1 + len(path)] = kept[:, :, [root + node for node in path]].clone()
        self.text += self.tokens(1 + len(path))
        self.known |= set(range(root, len(self.text) - 1))
        self.draft.runner.adopt(self.text[root:-1])


@pytest.mark.parametrize("seed", rest_slow(range(100), 12))
def test_every_node_has_the_logits_of_the_published_formulas(seed: int, device: str) -> None:
    drafted = Drafted(seed, device)
    num_before = len(drafted.text) - 1
    drafted.start_request(drafted.rng.choice([0, drafted.rng.randint(0, num_before), num_before]))
    for _ in range(2):
        drafted.check_round()
        drafted.accept()
    drafted.check_round()
    num_same = drafted.rng.randint(0, num_before)  # another request, whose beginning is the same
    drafted.text[num_same:] = [(drafted.text[num_same] + 1) % VOCAB, *drafted.tokens(8)]
    drafted.known &= set(range(num_same))
    drafted.start_request(drafted.rng.choice([num_same, drafted.rng.randint(num_same, len(drafted.text) - 1)]))
    drafted.check_round()


def test_missing_features_stay_missing_in_a_restored_text(device: str) -> None:
    drafted = Drafted(2, device, **DFLASH)
    texts = [[first, *drafted.tokens(69)] for first in (1, 2)]
    for text, first, known in ((texts[0], 40, range(40, 69)), (texts[1], 0, range(69)), (texts[0], 60, range(40, 69))):
        drafted.text = text
        drafted.start_request(first)
        drafted.known = set(known)
        drafted.check_round()


def test_a_recorded_pass_asks_nothing_of_the_host(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A recording could not repeat data that the host reads or copies, or sizes that depend on data."""
    blocks = [DFlashHeaded(3, device, **fields).on_device()[0] for fields in (NARROW, PAIRS, SHIFTED)]
    features = torch.zeros(6, 4, 32, device=device)
    places_R = torch.arange(6, device=device)
    for name in ("tensor", "as_tensor", "from_numpy", "nonzero", "masked_select"):
        monkeypatch.setattr(torch, name, None)
    for name in ("item", "tolist", "numpy", "nonzero", "__bool__", "__int__", "__float__", "__index__"):
        monkeypatch.setattr(torch.Tensor, name, None)
    for draft in blocks:
        draft.pass_layers(1 + WIDTH, 0)
        draft.write_scores(1 + WIDTH, 1)
        draft.write_scores(WIDTH, 0)
        draft.keep_features(features[:, : len(draft.taps)], places_R, places_R)
