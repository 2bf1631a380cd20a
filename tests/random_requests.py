"""Random requests on the built-in pair: drafters against plain decoding, and that against the textbook's sampler."""

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from forerun import Engine, EngineConfig, ForerunError, NoDrafter, SamplingParams
from forerun.core.config import DTypeName, Exactness, KernelsName, WeightsName
from forerun.core.drafter_config import Automatic, DraftHead, DraftModel, Parallel
from forerun.model.outputs import ForwardOutput
from tests.drafting.heads.published import builtin_head
from tests.random_settings import STOPS, edited, random_params
from tests.random_turns import turns_at_random
from tests.textbook import gumbel, pick
from tests.varied import Varied, draft_model, layer_skip, prompt_lookup, recycling, varied

MAX_LENGTH = 128
MOST_PROMPT, MOST_TOKENS = 32, 16
DRAFTERS: dict[str, Varied] = {
    "draft_model": draft_model(adaptive=False, depth=4, min_mass=0.05),
    "parallel": varied(Parallel(draft=DraftModel(verify_width=8, draft_width=4))),
    "prompt_lookup": prompt_lookup(min_match=1),
    "recycling": recycling(adaptive=False),
    "auto": varied(Automatic()),
    "eagle3": varied(DraftHead(model=builtin_head("eagle3"), adaptive=False, depth=3)),
    "dflash": varied(DraftHead(model=builtin_head("dflash"), adaptive=False, verify_width=6)),
    "dflash2": varied(DraftHead(model=builtin_head("dflash2"))),
    "layer_skip": layer_skip(adaptive=False, search="off", draft_width=2, depth=4),
    "layer_skip, gated, int4": layer_skip(adaptive=False, weights="int4", search_share=0.5, depth=3),
}


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What the engines compute with."""

    dtype: DTypeName = "auto"
    weights: WeightsName = "stored"
    kernels: KernelsName
    exactness: Exactness = "fast"
    num_threads: int


MACHINES = (
    Machine(dtype="bfloat16", kernels="auto", num_threads=1),
    Machine(dtype="float32", kernels="auto", num_threads=1),
    Machine(dtype="float32", kernels="torch", num_threads=1),
    Machine(dtype="float32", kernels="auto", num_threads=2),
    Machine(dtype="bfloat16", kernels="auto", num_threads=2),
    Machine(weights="int8", kernels="auto", num_threads=1),
    Machine(dtype="bfloat16", kernels="torch", num_threads=1),
    Machine(weights="int4", kernels="auto", num_threads=2),
    Machine(dtype="float64", kernels="auto", num_threads=1),
    Machine(dtype="float16", kernels="torch", num_threads=1),
    Machine(dtype="bfloat16", kernels="torch", exactness="exact", num_threads=1),
    Machine(dtype="float32", kernels="torch", exactness="exact", num_threads=2),
)


@dataclass(frozen=True, kw_only=True)
class Request:
    prompt_ids: list[int]
    params: SamplingParams


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a request wrote until its end, or until the error that ended it."""

    token_ids: tuple[int, ...]
    text: str
    end: str


class Contest:
    """Plain decoding and the drafters named, on one machine; every request is put to `num_asked` of them."""

    def __init__(self, machine: Machine, drafters: Sequence[str], *, num_asked: int) -> None:
        self.num_asked = num_asked
        config = EngineConfig(
            drafter=NoDrafter(), dtype=machine.dtype, weights=machine.weights, kernels=machine.kernels,
            exactness=machine.exactness, num_threads=machine.num_threads, max_length=MAX_LENGTH,
        )  # fmt: skip
        self.plain = Engine(config)
        self.engines = {name: self._drafted(config, DRAFTERS[name]) for name in drafters}
        self.totals: Counter[str] = Counter()

    @staticmethod
    def _drafted(config: EngineConfig, chosen: Varied) -> Engine:
        with turns_at_random():
            return Engine(replace(config, drafter=chosen.config), policies=chosen.policies)

    def close(self) -> None:
        for engine in (self.plain, *self.engines.values()):
            engine.close()

    def random_request(self, number: int) -> Request:
        rng = random.Random(number)
        vocab_size = self.plain.spec.vocab_size
        some = rng.sample(range(vocab_size), 6)  # few tokens, so that the text repeats itself
        prompt_ids = [rng.choice(some) for _ in range(rng.randint(1, MOST_PROMPT))]
        params = replace(
            random_params(rng, vocab_size, seed=rng.randrange(2**63)),
            max_new_tokens=rng.randint(1, MOST_TOKENS),
            stop=tuple(rng.sample(STOPS, rng.choice([0, 0, 0, 1, 3]))),
            stop_token_ids=tuple(rng.sample(range(vocab_size), rng.choice([0, 0, 20]))),
            ignore_eos=rng.random() < 0.5,
        )
        return Request(prompt_ids=prompt_ids, params=params)

    def play(self, number: int) -> None:
        """Count what one request gives."""
        request = self.random_request(number)
        with recorded_logits(self.plain) as logits:
            plain = outcome_of(self.plain, request)
        self.totals["none: requests"] += 1
        self.totals["none: tokens"] += len(plain.token_ids)
        self.totals["none: ended by an error"] += plain.end == "NumericalError"
        self._ask_the_textbook(request, plain, logits)
        rng, vocab_size = random.Random(f"prediction {number}"), self.plain.spec.vocab_size
        prediction = edited(rng, plain.token_ids, vocab_size) if rng.random() < 0.3 else None
        for name in random.Random(number).sample(sorted(self.engines), min(self.num_asked, len(self.engines))):
            drafted = outcome_of(self.engines[name], request, prediction)
            self.totals[f"{name}: requests"] += 1
            if drafted == plain:
                verdict = "same"
            elif self._is_near_tie(request, plain, drafted):
                verdict = "near-ties"
            elif self.plain.near_tie(request.params) and request.params.is_filtered:
                verdict = "at an edge of a filter, which rounding moves"
            else:
                verdict = "differ"
            self.totals[f"{name}: {verdict}"] += 1

    def _is_near_tie(self, request: Request, plain: Outcome, drafted: Outcome) -> bool:
        """True where the first other token led by no more than rounding may take; never where rows are exact."""
        bound = self.plain.near_tie(request.params)
        both = zip(plain.token_ids, drafted.token_ids, strict=False)
        num_same = next((place for place, (left, right) in enumerate(both) if left != right), None)
        if bound == 0.0 or num_same is None:
            return False
        text = [*request.prompt_ids, *plain.token_ids[:num_same]]
        return self.plain.margin_after(text, request.params) < bound

    def _ask_the_textbook(self, request: Request, plain: Outcome, logits: list[Tensor]) -> None:
        """Choose every token of the text again."""
        params, prompt_ids = request.params, request.prompt_ids
        answer: list[int] = []
        for row, token in zip(logits, plain.token_ids, strict=False):
            wide_V = row.numpy() if row.dtype == torch.float64 else row.float().numpy()
            position = len(prompt_ids) + len(answer)
            noise_V = None if params.is_greedy else gumbel(params.seed or 0, position, len(wide_V))
            expected = pick(wide_V, params, prompt_ids, answer, noise_V)
            possible = frozenset({token}) if expected is None else expected.possible
            self.totals["textbook: tokens"] += 1
            self.totals["textbook: at an edge of top_p or min_p"] += len(possible) > 1
            self.totals["textbook: differ"] += token not in possible
            answer.append(token)


@contextmanager
def recorded_logits(engine: Engine) -> Iterator[list[Tensor]]:
    """The logits of every row that the target chooses from."""
    runner, rows = engine._target, []
    forward = runner.forward

    def record(*inputs: object) -> ForwardOutput:
        output = forward(*inputs)  # type: ignore[arg-type]
        rows.extend(output.logits.clone())
        return output

    runner.forward = record  # type: ignore[method-assign, assignment]
    try:
        yield rows
    finally:
        runner.forward = forward  # type: ignore[method-assign]


def outcome_of(engine: Engine, request: Request, prediction: Sequence[int] | None = None) -> Outcome:
    token_ids: list[int] = []
    text, end = "", ""
    try:
        for step in engine.stream(request.prompt_ids, request.params, prediction=prediction):
            token_ids += step.token_ids
            text, end = text + step.text, str(step.finish)
    except ForerunError as error:
        end = type(error).__name__
    return Outcome(token_ids=tuple(token_ids), text=text, end=end)
