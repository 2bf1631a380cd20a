"""An engine whose target drafts for itself writes the plain text, whatever is asked of it."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from forerun import Engine, EngineConfig, FinishReason, Generation, LayerSkip, NoDrafter, Parallel, SamplingParams
from forerun.backends.cpu.binding import fault
from forerun.core.drafter_config import paper_layer_skip
from forerun.drafting.layer_skip.drafter import LayerSkipDrafter
from forerun.drafting.policies import Policies, RemotePolicy
from tests.drafting.layer_skip.skip_costs import adapt_to_slow_passes
from tests.marks import rest_slow
from tests.varied import Varied, engine_with, layer_skip, varied

PROMPT = "def read_lines(path):\n    "
PROMPTS = (PROMPT, "x = [1, 2, 3]\ny = [1, 2, 3]\nz = [1, 2")
GREEDY = SamplingParams(max_new_tokens=40, ignore_eos=True)
SAMPLED = SamplingParams(
    temperature=0.9,
    seed=11,
    top_k=40,
    top_p=0.95,
    min_p=0.01,
    repetition_penalty=1.1,
    presence_penalty=0.3,
    frequency_penalty=0.2,
    logit_bias={40: 1.5, 41: float("-inf")},
    max_new_tokens=40,
    ignore_eos=True,
)
PLAINLY_SAMPLED = SamplingParams(temperature=1.0, seed=5, max_new_tokens=40, ignore_eos=True)
PARAMS = pytest.mark.parametrize(
    "params", rest_slow([GREEDY, SAMPLED, PLAINLY_SAMPLED], 2), ids=["greedy", "every option", "temperature 1"]
)
# Not adaptive, so that it drafts however busy the machine is.
TREE = layer_skip(draft_width=2, depth=4, adaptive=False, search="off", looks_up=False)
DRAFTERS = {
    "a tree": TREE,
    "gated search": TREE.changed(search="gated", search_share=1.0, looks_up=True),
    "the paper's search": TREE.changed(search="paper"),
    "the paper": varied(paper_layer_skip()),
    "as it comes": layer_skip(),
    "an int8 copy": TREE.changed(weights="int8", search="gated", search_share=1.0),
    "an int4 copy": TREE.changed(weights="int4"),
}
needs_native = pytest.mark.skipif(fault() is not None, reason=str(fault()))


def engine_of(drafter: Varied | NoDrafter, **changes: object) -> Engine:
    settings: dict[str, object] = {"dtype": "bfloat16", "num_threads": 1, "max_length": 256, "exactness": "exact"}
    engine = engine_with(drafter, **{**settings, **changes})
    own = engine.drafting.held.get("layer_skip")
    if isinstance(own, LayerSkipDrafter) and own.needs_costs and not own._config.adaptive:
        adapt_to_slow_passes(own)  # what was measured on a busy machine may say that drafting does not pay
    return engine


class PlainTexts:
    """What plain decoding writes, each text once: all drafters are held against the same ones."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._known = dict[str, Generation]()

    def generate(self, prompt: str | list[int], params: SamplingParams) -> Generation:
        key = repr((prompt, params))
        if key not in self._known:
            self._known[key] = self._engine.generate(prompt, params)
        return self._known[key]


@pytest.fixture(scope="module")
def plain() -> Iterator[PlainTexts]:
    with engine_of(NoDrafter()) as engine:
        yield PlainTexts(engine)


RARELY = ("gated search", "the paper's search", "an int8 copy")  # others stand for them by default


@pytest.fixture(
    scope="module", params=[pytest.param(name, marks=pytest.mark.slow if name in RARELY else ()) for name in DRAFTERS]
)
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    with engine_of(DRAFTERS[request.param]) as engine:
        yield engine


def assert_same(ours: Generation, plain: Generation) -> None:
    assert (ours.token_ids, ours.text, ours.finish_reason) == (plain.token_ids, plain.text, plain.finish_reason)
    assert ours.stats.num_near_ties == 0, "in the exact mode nothing is left to rounding"


def self_drafter_of(engine: Engine) -> LayerSkipDrafter:
    own = engine.drafting.held["layer_skip"]
    assert isinstance(own, LayerSkipDrafter)
    return own


@needs_native
@PARAMS
def test_every_token_in_bfloat16_is_that_of_plain_decoding(
    engine: Engine, plain: PlainTexts, params: SamplingParams
) -> None:
    results = []
    for prompt in PROMPTS:
        results.append(engine.generate(prompt, params))
        assert_same(results[-1], plain.generate(prompt, params))
    if not self_drafter_of(engine)._config.adaptive:
        assert sum(result.stats.num_accepted for result in results) > 0, "a drafter that is never right shows nothing"


@needs_native
def test_a_stop_token_within_a_draft_ends_the_text_there(engine: Engine, plain: PlainTexts) -> None:
    with engine.stream(PROMPT, GREEDY) as stream:
        pieces = [step.token_ids for step in stream]
    whole = tuple(token for piece in pieces for token in piece)
    stops = {piece[0] for piece in pieces if len(piece) > 1}
    assert stops or self_drafter_of(engine)._config.adaptive, "nothing was accepted"
    for stop in sorted(stops)[:3]:
        params = replace(GREEDY, stop_token_ids=(stop,))
        result = engine.generate(PROMPT, params)
        assert result.token_ids == whole[: whole.index(stop) + 1]
        assert result.finish_reason == FinishReason.STOP
        assert_same(result, plain.generate(PROMPT, params))


@pytest.mark.slow
@pytest.mark.parametrize("weights", ["plain", "int4"])
def test_a_process_with_a_part_of_the_target_drafts_for_it_and_the_text_stays(weights: str) -> None:
    """The target is paced, so that it leaves the process time even where both share one core."""
    draft = LayerSkip(search="off", weights=weights)  # type: ignore[arg-type]
    parallel = Varied(Parallel(draft=draft), Policies(remote=RemotePolicy(looks_up=False)))
    settings = {"dtype": "float32", "device": "paced:target=5ms", "num_threads": 1, "max_length": 256}
    num_accepted = 0
    with (
        Engine(EngineConfig(drafter=NoDrafter(), **{**settings, "device": "cpu"})) as judge,  # type: ignore[arg-type]
        engine_with(parallel, **settings) as engine,
    ):
        for params in (GREEDY, SAMPLED):
            ours = engine.generate(PROMPT, params)
            plain = judge.generate(PROMPT, params)
            assert (ours.token_ids, ours.text) == (plain.token_ids, plain.text)
            num_accepted += ours.stats.num_accepted
    assert num_accepted > 0
