"""Rounds on the device with a draft head: each drafts and accepts what the host's loop does with the same head."""

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from forerun.backends.choose import choose_backend
from forerun.backends.gpu.backend import TRITON
from forerun.backends.torch.backend import REFERENCE
from forerun.core.config import SamplingParams
from forerun.core.drafter_config import DraftHead
from forerun.core.model_spec import ModelSpec
from forerun.decoding.decoder import Decoder, Request, Round, play
from forerun.decoding.drafters import Drafters
from forerun.decoding.host_loop import HostDecoder
from forerun.drafting.draft_model import serial_rows
from forerun.drafting.heads.drafter import HeadDrafter, head_vocabulary
from forerun.drafting.heads.eagle_network import EagleDrafter, EagleExecutor
from forerun.drafting.policies import TreePolicy
from forerun.model.executor import Executor
from forerun.model.runner import Runner
from forerun.model.tree_cache import TreeCache
from forerun.sampling.noise import KeyedNoise
from tests.drafting.heads.eagle_reference import Floats, eagle_logits
from tests.drafting.heads.random_heads import eagle_head, eagle_tensors, random_body, random_eagle
from tests.marks import rest_slow
from tests.tiny import decode_ids, drafters_of, random_weights, tiny_runner

pytest.importorskip("triton")

from forerun.backends.gpu.eagle_on_device import EagleOnDevice
from forerun.backends.gpu.tree.device_tree import COMMITTED, DeviceTree
from forerun.decoding.device_loop import DeviceDecoder, device_decoders
from tests.backends.gpu.test_decoder import CAPACITY, FILTERED, GREEDY, PENALISED, SAMPLED, runner_of, spec_of

VOCAB = 8  # so few tokens that many guesses of a random head are right
KNOWN = [0, 1, 3, 4, 6, 7]  # the target's tokens that a head of a part of them has
TEXT = [3, 1, 4, 1, 5, 1, 2, 6]
CLOSE = 1e-4  # of logits in float32
TREE = TreePolicy(num_children=2, min_mass=0.0)


@pytest.fixture(autouse=True)
def _as_in_an_engine() -> Iterator[None]:
    with torch.inference_mode():
        yield


class Headed(ABC):
    """A target with a random head."""

    tensors: dict[str, Tensor]  # the head's

    def __init__(self, seed: int, device: str, config: DraftHead, *, num_layers: int, known: Sequence[int] | None):
        self.config = config
        self.device = device
        self.spec = spec_of(vocab_size=VOCAB, num_layers=num_layers)
        self.weights = random_weights(self.spec, torch.Generator().manual_seed(seed), dtype=torch.float32)
        self.vocabulary = None if known is None else head_vocabulary(torch.tensor(known), VOCAB)
        self.num_columns = VOCAB if known is None else len(known)

    @abstractmethod
    def drafter_of(self) -> HeadDrafter:
        """A drafter with this head, and an empty cache."""

    def runner(self, body: ModelSpec, num_behind: int, executor: Callable[[TreeCache], Executor]) -> Runner:
        """A head's cache, with room for some rows behind the text."""
        return Runner(
            body, None, capacity=CAPACITY + num_behind,
            backend=choose_backend("exact", dtype=torch.float32, device="cpu", head_dim=2).backend,
            dtype=torch.float32, device=self.device, cache_bytes=2**20,
            make_executor=executor,
        )  # fmt: skip

    @property
    def here(self) -> dict[str, Tensor]:
        """The head's tensors on the device."""
        return {name: value.to(self.device) for name, value in self.tensors.items()}

    def decoder(self) -> DeviceDecoder:
        plan = self.drafter_of().round_plan
        assert plan is not None
        (decoder,) = device_decoders(TRITON, runner_of(self.spec, self.weights, self.device), plan)
        return decoder

    def host_decoder(self) -> HostDecoder:
        return HostDecoder(self.plain_target(), drafters_of(self.drafter_of()))

    def rounds(self, decoder: Decoder, prompt: list[int], params: SamplingParams, num_tokens: int) -> list[list[int]]:
        """The tokens of each round."""
        noise = None if params.is_greedy else KeyedNoise(7, VOCAB, device=self.device)
        played = play((decoder,), Request(prompt_ids=prompt, params=params, noise=noise), num_tokens)
        return [list(done.token_ids) for done in played if isinstance(done, Round)]

    def plain(self, prompt: list[int], params: SamplingParams, num_tokens: int) -> list[int]:
        return decode_ids(self.plain_target(), Drafters(), prompt, params, seed=7, num_tokens=num_tokens)

    def plain_target(self) -> Runner:
        """Of torch's reference kernels, which are quicker than Triton's in its interpreter."""
        return tiny_runner(self.spec, self.weights, backend=REFERENCE, capacity=CAPACITY, device=self.device)


class EagleHeaded(Headed):
    """With an EAGLE-3 head."""

    def __init__(self, seed: int, device: str, *, known: Sequence[int] | None = None) -> None:
        config = DraftHead(model="-", verify_width=6, draft_width=2, depth=2, adaptive=False)
        super().__init__(seed, device, config, num_layers=2, known=known)
        rng = random.Random(seed)
        self.head = random_eagle(rng, self.spec, body=random_body(rng, vocab_size=self.num_columns))
        self.tensors = {name: value.float() for name, value in eagle_tensors(self.head, self.spec, seed).items()}

    def drafter_of(self) -> EagleDrafter:
        head = eagle_head(self.head, self.here)
        num_behind = serial_rows(self.config.shape)
        return EagleDrafter(
            self.runner(self.head.body, num_behind, lambda cache: EagleExecutor(head, cache)), self.config, TREE,
            target_vocab_size=VOCAB, taps=self.head.taps(2), vocabulary=self.vocabulary,
        )  # fmt: skip


CASES = [
    pytest.param(3, None, SAMPLED, id="sampled"),
    pytest.param(6, KNOWN, FILTERED, id="part, filtered", marks=pytest.mark.slow),
    pytest.param(15, None, GREEDY, id="greedy", marks=pytest.mark.slow),
    pytest.param(5, KNOWN, GREEDY, id="part, greedy", marks=pytest.mark.slow),
    pytest.param(5, KNOWN, PENALISED, id="part, penalised", marks=pytest.mark.slow),
    pytest.param(18, None, SAMPLED, id="other layers, sampled", marks=pytest.mark.slow),
    pytest.param(11, None, FILTERED, id="three layers, filtered", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("seed", "known", "params"), CASES)
def test_rounds_accept_what_those_of_the_hosts_loop_do(
    seed: int, known: Sequence[int] | None, params: SamplingParams, device: str
) -> None:
    headed = EagleHeaded(seed, device, known=known)
    found = headed.rounds(headed.decoder(), TEXT, params, 10)
    assert [token for tokens in found for token in tokens][:10] == headed.plain(TEXT, params, 10)
    assert found == headed.rounds(headed.host_decoder(), TEXT, params, 10)
    assert sum(len(tokens) - 1 for tokens in found) > 4, "where little is accepted, little is read again"


class Checked:
    """Every row that the head gets scores for on the device is compared with the published formulas."""

    def __init__(self, headed: EagleHeaded, decoder: DeviceDecoder) -> None:
        self.headed = headed
        self.rounds = decoder._rounds
        self.num_rows = 0
        self.rounds.graphs.records = False  # A recording could not compare.
        self.arrays: dict[str, Floats] = {name: tensor.double().numpy() for name, tensor in headed.tensors.items()}
        self.missing = set[int]()
        assert isinstance(self.rounds.draft, EagleOnDevice)
        self._write = self.rounds.draft.write_scores
        self.draft = self.rounds.draft
        self.draft.write_scores = self.write_scores  # type: ignore[method-assign]

    def features(self, text: list[int]) -> dict[int, Floats]:
        """The target's features before the root, but those that it restored."""
        ascending = tuple(sorted(set(taps := self.headed.head.taps(2))))
        found = self.headed.plain_target().append(text[:-1], num_logit_rows=0, taps=ascending).features
        assert found is not None
        features = dict(enumerate(found[:, [ascending.index(layer) for layer in taps]].double().cpu().numpy()))
        return {place: feature for place, feature in features.items() if place not in self.missing}

    def write_scores(self, num_rows: int, first_row: int) -> None:
        self._write(num_rows, first_row)
        tree = self.rounds.tree
        root = int(self.rounds.tree.header[COMMITTED.value])
        text = self.rounds._text_P[: root + 1].tolist()
        features = self.features(text)
        scores = self.draft.score_rows.scores
        for row, node in enumerate(node for node in tree.batch_W.tolist() if node >= 0):
            above = [other for other in range(1, tree.capacity) if int(tree.nodes.ancestors[node]) >> other & 1]
            path = [int(tree.nodes.tokens[other]) for other in above]
            if root - 1 in features:
                expected = eagle_logits(self.headed.head, self.arrays, text, features, path)
                assert np.abs(scores[row, : len(expected)].double().cpu().numpy() - expected).max() <= CLOSE
                self.num_rows += 1


def test_every_row_of_a_tree_has_the_logits_of_the_published_formulas(device: str) -> None:
    headed = EagleHeaded(3, device)
    decoder = headed.decoder()
    checked = Checked(headed, decoder)
    first = headed.rounds(decoder, TEXT, SAMPLED, 6)
    assert max(map(len, first)) == 3
    assert checked.num_rows == len(first) * (1 + headed.config.draft_width)
    for missing in (3, 4):  # the last token that the target's cache holds: no features come with it
        checked.missing.add(missing)
        num_before = checked.num_rows
        headed.rounds(decoder, [*TEXT[:4], 2, 2], SAMPLED, 4)
        assert checked.num_rows > num_before


class Depths:
    """In the place of a depth rule."""

    def __init__(self, *depths: int) -> None:
        self._depths = iter(depths)

    def depth(self) -> int:
        return next(self._depths)

    def measure_depth(self, *_: object) -> None:
        pass


@pytest.mark.parametrize("num_plain", rest_slow([3, 7], 1))  # the first pass has rows for five tokens
def test_tokens_of_rounds_without_a_draft_are_read_later(num_plain: int, device: str) -> None:
    headed = EagleHeaded(3, device)
    decoder = headed.decoder()
    checked = Checked(headed, decoder)
    decoder._referee = Depths(2, *[0] * num_plain, *[2] * 9)  # type: ignore[assignment]
    found = headed.rounds(decoder, TEXT, SAMPLED, num_plain + 7)
    assert [token for tokens in found for token in tokens][:12] == headed.plain(TEXT, SAMPLED, num_plain + 7)[:12]
    assert found[1 : 1 + num_plain] == [tokens[:1] for tokens in found[1 : 1 + num_plain]]
    assert checked.num_rows >= 2 * (1 + headed.config.draft_width)


def test_a_recorded_pass_asks_nothing_of_the_host(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A recording could not repeat data that the host reads or copies, or sizes that depend on data."""
    plan = (headed := EagleHeaded(3, device)).drafter_of().round_plan
    assert plan is not None
    assert plan.draft is not None
    tree = DeviceTree(verify_width=6, draft_width=2, num_children=2, min_mass=0.0, device=device, rereads=True)
    draft = EagleOnDevice(plan.draft, plan, tree, headed.plain_target())
    features = torch.zeros(6, len(draft.taps), headed.spec.hidden_size, device=device)
    for name in ("tensor", "as_tensor", "from_numpy", "nonzero", "masked_select"):
        monkeypatch.setattr(torch, name, None)
    for name in ("item", "tolist", "numpy", "nonzero", "__bool__", "__int__", "__float__", "__index__"):
        monkeypatch.setattr(torch.Tensor, name, None)
    draft.pass_layers(7, 2)
    draft.write_scores(7, 5)
    slots_R = draft.rows.slots[:6].long()
    draft.keep_features(features, slots_R, slots_R)
