"""What a drafter proposes can cost speed, never a token and never the request."""

import logging
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import pytest
import torch

from forerun.backends.cpu.backend import NATIVE
from forerun.backends.gpu.backend import TRITON
from forerun.backends.torch.backend import FUSED, REFERENCE
from forerun.core.config import SamplingParams
from forerun.core.drafter_config import DraftModel, LayerSkip
from forerun.core.errors import NumericalError
from forerun.core.steps import DrafterState
from forerun.decoding.decoder import Request, Round, play
from forerun.decoding.drafters import Drafters
from forerun.decoding.host_loop import HostDecoder
from forerun.drafting.draft_model import DraftModelDrafter
from forerun.drafting.draft_tree import DraftTree
from forerun.drafting.drafter import ReadsFeatures, ReadsScores, ReadsText, RidesAlong
from forerun.drafting.layer_skip.drafter import LayerSkipDrafter
from forerun.drafting.policies import TreePolicy
from forerun.model.backend import ModelBackend
from forerun.model.executor import ForwardInput
from forerun.model.runner import Runner
from forerun.model.self_drafting import SharedCacheRunner
from forerun.sampling.noise import KeyedNoise
from forerun.sampling.sample import TopK
from forerun.speculation.referee.budget import ProposedTree, RowBudget
from forerun.speculation.tree import TokenTree
from tests.marks import in_turn
from tests.random_settings import random_params
from tests.tiny import RootAlone, decode_ids, decode_rounds, drafters_of, plain_spec, random_weights, tiny_runner

needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
PROMPT = [1, 2, 3, 4]
PARAMS = [SamplingParams(), SamplingParams(temperature=1.0)]
SPEC = plain_spec(vocab_size=30, tied_embeddings=False)


@dataclass(frozen=True, kw_only=True)
class Spoiled(ProposedTree):
    """Whatever the referee cuts, the target is given a spoiled tree."""

    spoil: Callable[[TokenTree], object]


def cut_and_spoil(budget: RowBudget, proposal: ProposedTree) -> TokenTree:
    tree = CUT(budget, proposal)
    if isinstance(proposal, Spoiled):
        proposal.spoil(tree)
    return tree


CUT = RowBudget.cut


@pytest.fixture(autouse=True)
def _spoiling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RowBudget, "cut", cut_and_spoil)


class FaultyDrafter(RootAlone):
    """Hangs whatever `spoil` makes below the right root."""

    verify_width = 6

    def __init__(self, spoil: Callable[[TokenTree], object]) -> None:
        self._spoil = spoil

    def propose(self, budget: RowBudget) -> ProposedTree:
        tree = TokenTree(self.root)
        for token in range(5):
            tree.add(len(tree) - 1, token, 0.0)
        return Spoiled(tree=tree, spoil=self._spoil)


SPOILS: dict[str, Callable[[TokenTree], object]] = {
    "another root": lambda tree: tree.token_ids.__setitem__(0, (tree.token_ids[0] + 1) % 30),
    "an unknown token": lambda tree: tree.token_ids.__setitem__(3, 30),
    "too wide": lambda tree: tree.add(0, 17, 0.0),
    "no tree": lambda tree: tree.parents.__setitem__(2, 4),
}


def runner() -> Runner:
    return tiny_runner(SPEC, random_weights(SPEC, torch.Generator().manual_seed(5)))


@pytest.mark.parametrize("params", PARAMS)
@pytest.mark.parametrize("kind", SPOILS)
def test_a_faulty_proposal_is_dropped_and_reported(
    kind: str, params: SamplingParams, caplog: pytest.LogCaptureFixture
) -> None:
    plain = decode_ids(runner(), Drafters(), PROMPT, params, seed=3, num_tokens=20)
    with caplog.at_level(logging.WARNING):
        ours = decode_ids(runner(), FaultyDrafter(SPOILS[kind]), PROMPT, params, seed=3, num_tokens=20)
    assert ours == plain
    assert "a proposal was dropped" in caplog.text


class RaisingDrafter(FaultyDrafter, ReadsText, ReadsFeatures, ReadsScores, RidesAlong):
    """Needs everything that the target can give, and raises in one method, from one of its calls on."""

    taps = (0, 1)
    num_successors = 2
    reading_s = 0.0
    spent_s = 0.0
    is_due = True
    wants_rows = True

    def __init__(self, method: str, num_good: int) -> None:
        super().__init__(lambda tree: None)
        self._plain = getattr(self, method)
        self._num_good = num_good
        self.is_well = False
        setattr(self, method, self._call)

    def _call(self, *given: Any) -> Any:
        self._num_good -= 1
        if self._num_good < 0 and not self.is_well:
            raise IndexError("index 5 is out of bounds")
        return self._plain(*given)

    def prefill(self) -> bool:
        return False

    def prepare(self) -> None: ...

    def extend(self, inputs: ForwardInput) -> ForwardInput:
        return inputs

    def told_logits(self, logits_EV: torch.Tensor) -> None: ...

    def told_successors(self, tree: TokenTree, successors: TopK) -> None: ...

    def read_features(self, place: int, features: torch.Tensor) -> None: ...

    def told_features(self, place: int, features: torch.Tensor) -> None: ...


def text_of(
    decoder: HostDecoder, params: SamplingParams, prediction: Sequence[int] = ()
) -> tuple[list[int], list[Round]]:
    """The tokens of one request, and its rounds."""
    noise = None if params.is_greedy else KeyedNoise(3, SPEC.vocab_size, device="cpu")
    prompt = [5 if params.is_greedy else 6, *PROMPT * 3]  # the target's cache holds the other one
    request = Request(prompt_ids=prompt, params=params, noise=noise, prediction=prediction)
    rounds = [played for played in play((decoder,), request, 20) if isinstance(played, Round)]
    return [token for played in rounds for token in played.token_ids][:20], rounds


METHODS = (
    "begin",
    "prefill",
    "propose",
    "prepare",
    "extend",
    "told_successors",
    "read_features",
    "told_features",
    "told",
    "end",
)


@pytest.mark.usefixtures("guarded_drafters")
@pytest.mark.parametrize("prediction", [(), (7, 7, 3)])
@pytest.mark.parametrize(("method", "num_good"), in_turn(METHODS, [0, 1]))
def test_a_drafter_that_raises_costs_the_drafting_of_the_text(
    method: str, num_good: int, prediction: tuple[int, ...], caplog: pytest.LogCaptureFixture
) -> None:
    drafter = RaisingDrafter(method, num_good)
    ours = HostDecoder(runner(), drafters_of(drafter))
    none = HostDecoder(runner(), Drafters())
    for params in (*PARAMS, *PARAMS):
        plain, _ = text_of(none, params)
        assert text_of(ours, params, prediction)[0] == plain
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "plain decoding continues: the drafter failed (IndexError: index 5 is out of bounds)" in caplog.text
    drafter.is_well = True
    text_of(ours, PARAMS[0], prediction)  # after an error at the end of a request
    assert text_of(ours, PARAMS[0], prediction)[1][0].stats.num_drafted > 0, "the next request is drafted again"


@pytest.mark.usefixtures("guarded_drafters")
@pytest.mark.parametrize("num_good", [0, 1, 4])
def test_rows_that_a_raising_drafter_left_in_the_targets_cache_are_dropped(
    num_good: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = runner()
    drafter = LayerSkipDrafter(SharedCacheRunner(target), LayerSkip(search="off", depth=4, verify_width=8))
    expand = DraftTree.expand
    left = [num_good]

    def fails(tree: DraftTree, budget: RowBudget | None = None) -> bool:
        left[0] -= 1
        grown = expand(tree, budget)
        if left[0] < 0:
            raise RuntimeError("after a pass")
        return grown

    monkeypatch.setattr(DraftTree, "expand", fails)
    ours = HostDecoder(target, drafters_of(drafter))
    none = HostDecoder(runner(), Drafters())
    for params in PARAMS:
        text, rounds = text_of(ours, params)
        assert text == text_of(none, params)[0]
        assert rounds[-1].stats.drafter is DrafterState.DOWN


def weights_that_overflow_on(token: int) -> dict[str, torch.Tensor]:
    weights = random_weights(SPEC, torch.Generator().manual_seed(5))
    weights["embedding.weight"][token] = torch.nan
    return weights


def test_a_target_that_fails_on_the_text_itself_ends_it_and_empties_the_cache() -> None:
    sick = tiny_runner(SPEC, weights_that_overflow_on(PROMPT[-1]))
    with pytest.raises(NumericalError):
        list(decode_rounds(sick, Drafters(), PROMPT, SamplingParams(), seed=3, num_tokens=5))
    assert sick.cache.committed_len == 0
    assert sick.cached_ids == []


@pytest.mark.parametrize(
    ("settings", "gain"),
    [
        ({"temperature": 1e-4}, 1e305),
        ({"temperature": 1e-4, "top_k": 5}, 1e305),
        ({"repetition_penalty": 1e-4}, 1e305),
        ({"logit_bias": dict.fromkeys(range(30), float("-inf"))}, 1.0),
    ],
)
def test_settings_that_leave_nothing_of_sound_logits_are_named_as_the_cause(
    settings: dict[str, Any], gain: float
) -> None:
    weights = random_weights(SPEC, torch.Generator().manual_seed(5))
    target = tiny_runner(SPEC, {**weights, "head.weight": weights["head.weight"] * gain})
    text = list(range(30))  # one of them has a positive logit
    with pytest.raises(NumericalError, match=f"logits are finite, .* but {next(iter(settings))} ") as refused:
        decode_rounds(target, Drafters(), text, SamplingParams(**settings), seed=3, num_tokens=5)
    assert "damaged" not in str(refused.value)


@pytest.mark.filterwarnings("ignore:invalid value encountered")  # of numpy, in the interpreter of Triton
@pytest.mark.usefixtures("emulation")
@pytest.mark.parametrize("kernels", [FUSED, REFERENCE, NATIVE, pytest.param(TRITON, marks=needs_triton)])
def test_a_prompt_that_overflows_leaves_nothing_to_the_next_one(kernels: ModelBackend) -> None:
    """Where masked values are added up times 0, a row that is no number spoils those before it in the same pass."""
    spec = plain_spec(
        num_layers=1, hidden_size=32, num_heads=2, num_kv_heads=1, head_dim=16, intermediate_size=32, vocab_size=40,
        qk_norm=False,
    )  # fmt: skip
    weights = random_weights(spec, torch.Generator().manual_seed(5), dtype=torch.float32)
    sick = {**weights, "embedding.weight": weights["embedding.weight"].clone()}
    sick["embedding.weight"][39] = torch.nan
    prompt = [place % 30 for place in range(40)]  # wide enough for the kernels of a text
    params = SamplingParams(temperature=1.0, logit_bias={39: -float("inf")})
    with torch.inference_mode():
        target = tiny_runner(spec, sick, backend=kernels)
        with pytest.raises(NumericalError):
            decode_ids(target, Drafters(), [*prompt, 39, 1], params, seed=3, num_tokens=4)
        ours = decode_ids(target, Drafters(), prompt, params, seed=3, num_tokens=4)
        sound = tiny_runner(spec, weights, backend=kernels)
        assert ours == decode_ids(sound, Drafters(), prompt, params, seed=3, num_tokens=4)


@pytest.mark.parametrize("number", range(12))
def test_a_draft_without_sound_numbers_changes_no_token(number: int) -> None:
    """NaN, infinity or nothing but minus infinity in its logits, whatever is done to them afterwards."""
    rng = random.Random(number)
    weights = random_weights(SPEC, torch.Generator().manual_seed(5))
    sick = {name: weight.clone() for name, weight in weights.items()}
    sick["head.weight"][:: rng.choice([1, 3, 30])] = rng.choice([torch.nan, torch.inf, -torch.inf, 1e305])
    params = random_params(rng, 30)
    config = DraftModel(verify_width=8, draft_width=4, depth=3, adaptive=False)
    policy = TreePolicy(num_children=rng.choice([4, 16]))
    with torch.inference_mode():
        drafter = DraftModelDrafter(tiny_runner(SPEC, sick), config, policy, target_vocab_size=30)
        ours = decode_ids(runner(), drafter, PROMPT, params, seed=3, num_tokens=12)
        assert ours == decode_ids(runner(), Drafters(), PROMPT, params, seed=3, num_tokens=12)
