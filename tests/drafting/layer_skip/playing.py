"""Requests of tiny targets that draft for themselves, as the engine runs them: probes along, round by round."""

from collections.abc import Generator, Sequence
from weakref import WeakKeyDictionary

import pytest
import torch

from forerun.checkpoints.typed_weights import LoadedWeights
from forerun.core.config import SamplingParams
from forerun.core.drafter_config import LayerSkip
from forerun.core.model_spec import ModelSpec
from forerun.core.pace import Pace
from forerun.core.sublayers import ATTENTION, MLP, SkipSet, skippable
from forerun.decoding import drafters as drafters_module
from forerun.decoding.decoder import Request, Round
from forerun.decoding.drafters import Drafters
from forerun.decoding.host_loop import decode
from forerun.decoding.verifier import Verifier
from forerun.drafting import draft_tree
from forerun.drafting.layer_skip import search as search_module
from forerun.drafting.layer_skip.drafter import LayerSkipDrafter, rows_behind_text
from forerun.drafting.layer_skip.set_files import NamedSet
from forerun.drafting.layer_skip.speed_model import SkipCosts
from forerun.model.backend import ModelBackend
from forerun.model.executor import ForwardInput, ForwardOutput
from forerun.model.runner import Runner
from forerun.model.self_drafting import SharedCacheRunner
from forerun.sampling.noise import KeyedNoise
from tests.drafting.layer_skip.skip_costs import adapted, flat_pace, made_up_costs
from tests.tiny import CAPACITY, Weights, plain_spec, random_weights, tiny_runner
from tests.varied import Varied, varied

SPEC = plain_spec(num_layers=6, max_positions=256)
PROMPT = [3, 1, 4, 1, 5]
GREEDY = SamplingParams()
SAMPLED = SamplingParams(
    temperature=1.0, top_p=0.95, repetition_penalty=1.2, presence_penalty=0.3, frequency_penalty=0.2
)

LAST = SPEC.num_layers - 2
SKIP_SETS: dict[str, SkipSet] = {
    "nothing": frozenset(),
    "all that can be": frozenset(skippable(SPEC.num_layers)),
    "layer 1": frozenset({(1, ATTENTION), (1, MLP)}),
    "the last but one": frozenset({(LAST, ATTENTION), (LAST, MLP)}),
    "from layer 1 to the last but one, with a hole": frozenset(
        {(1, ATTENTION), (1, MLP), (2, MLP), (LAST, ATTENTION), (LAST, MLP)}
    ),
    "only attention": frozenset((layer, ATTENTION) for layer in range(1, LAST + 1)),
    "only MLPs": frozenset((layer, MLP) for layer in range(1, LAST + 1)),
}


def weights_of(
    seed: int = 1, spec: ModelSpec = SPEC, *, scale: float = 0.7, dtype: torch.dtype = torch.float64
) -> Weights:
    """With a small `scale` the layers add little, so that a pass without some of them often guesses right."""
    return random_weights(spec, torch.Generator().manual_seed(seed), scale=scale, dtype=dtype)


def target_for(
    config: LayerSkip | Varied | None,
    weights: Weights,
    *,
    spec: ModelSpec = SPEC,
    backend: ModelBackend | None = None,
    max_length: int = CAPACITY,
) -> Runner:
    """A target with just the room that an engine of this `max_length` would give it."""
    num_behind = 1 if config is None else rows_behind_text(varied(config).config, varied(config).policies.skip)
    exactness = "fast" if backend is None else "exact"
    return tiny_runner(spec, weights, exactness=exactness, backend=backend, capacity=max_length + num_behind)


def drafter_on(
    target: Runner, config: LayerSkip | Varied, *, skipped: SkipSet | None = None, copy_of: Weights | None = None
) -> LayerSkipDrafter:
    """The target's own drafter; if it asks, it is told that drafts are cheap, and all passes far slower than they are.

    Args:
        skipped: the best known set, which may be empty.
        copy_of: the weights of which `config.weights` says how to round them.
    """
    chosen = varied(config)
    copy = None
    if copy_of is not None:
        copy = target.backend.executor(target.spec, LoadedWeights(copy_of, chosen.config.weights), target.cache)
    known = [] if skipped is None else [NamedSet(name="known", skipped=skipped, num_hits=9.0, num_rows=10.0)]
    drafter = LayerSkipDrafter(
        SharedCacheRunner(target, copy),
        chosen.config,
        known=known,
        policy=chosen.policies.skip,
        tree=chosen.policies.tree,
    )
    put_to_work(drafter, flat_pace(10.0), made_up_costs(target.spec.num_layers, pass_s=0.1))
    return drafter


AT_WORK = WeakKeyDictionary[LayerSkipDrafter, Drafters]()


def put_to_work(drafter: LayerSkipDrafter, target: Pace, costs: SkipCosts) -> None:
    """The drafter's requests are played with these costs from now on, if it asks for any."""
    AT_WORK[drafter] = adapted(drafter, target, costs)


def start_request(
    target: Runner,
    drafter: LayerSkipDrafter | Drafters,
    prompt_ids: Sequence[int],
    params: SamplingParams,
    *,
    seed: int,
    num_tokens: int,
) -> Generator[Round, None, None]:
    """One request, as `Engine.stream` begins it."""
    noise = None if params.is_greedy else KeyedNoise(seed, target.spec.vocab_size)
    drafters = drafter if isinstance(drafter, Drafters) else AT_WORK[drafter]
    drafters.start_text(Request(prompt_ids=prompt_ids, params=params, noise=noise), target.drop_rows)
    target.sync(prompt_ids[:-1])
    side = Verifier(target, params, prompt_ids, noise)
    return decode(side, drafters, near_tie=0.0, num_tokens=num_tokens)


def play(
    target: Runner,
    drafter: LayerSkipDrafter | Drafters,
    prompt_ids: Sequence[int] = PROMPT,
    params: SamplingParams = GREEDY,
    *,
    seed: int = 7,
    num_tokens: int = 40,
) -> list[Round]:
    return list(start_request(target, drafter, prompt_ids, params, seed=seed, num_tokens=num_tokens))


def ids_of(rounds: Sequence[Round], num_tokens: int | None = None) -> list[int]:
    return [token for step in rounds for token in step.token_ids][:num_tokens]


def num_accepted(rounds: Sequence[Round]) -> int:
    return sum(step.stats.num_accepted for step in rounds)


def num_drafted(rounds: Sequence[Round]) -> int:
    return sum(step.stats.num_drafted for step in rounds)


def plain_ids(
    weights: Weights,
    prompt_ids: Sequence[int] = PROMPT,
    params: SamplingParams = GREEDY,
    *,
    seed: int = 7,
    num_tokens: int = 40,
    spec: ModelSpec = SPEC,
    backend: ModelBackend | None = None,
) -> list[int]:
    """The text without any drafter, by a target that never saw another request."""
    target = target_for(None, weights, spec=spec, backend=backend, max_length=len(prompt_ids) + num_tokens)
    return ids_of(play(target, Drafters(), prompt_ids, params, seed=seed, num_tokens=num_tokens))


class Passes:
    """Every pass that is made from here on, and a clock that only they move.

    Args:
        target_s: seconds of a pass that verifies.
        draft_s: seconds of a pass that the drafter makes.
    """

    def __init__(
        self,
        target: Runner,
        drafter: LayerSkipDrafter,
        monkeypatch: pytest.MonkeyPatch,
        *,
        target_s: float = 1.0,
        draft_s: float = 0.5,
    ) -> None:
        self.now = 0.0
        self.is_drafting = False
        self.target_s = target_s
        self.draft_s = draft_s
        self.drafts: list[ForwardInput] = []
        self.verifications: list[ForwardInput] = []
        run = target.forward
        run_draft = drafter.runner.forward

        def verify(inputs: ForwardInput) -> ForwardOutput:
            if not self.is_drafting and inputs.num_logit_rows:
                self.verifications.append(inputs)
                self.now += self.target_s
            return run(inputs)

        def draft(inputs: ForwardInput) -> ForwardOutput:
            self.drafts.append(inputs)
            self.now += self.draft_s
            self.is_drafting = True
            try:
                return run_draft(inputs)
            finally:
                self.is_drafting = False

        monkeypatch.setattr(target, "forward", verify)
        monkeypatch.setattr(drafter.runner, "forward", draft)
        for module in (drafters_module, search_module, draft_tree):
            monkeypatch.setattr(module, "perf_counter", lambda: self.now)
