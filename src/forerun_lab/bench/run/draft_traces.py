"""Record drafters' guesses at every token of the target's answers, as traces for the planner."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import torch

from forerun.checkpoints.open import open_source
from forerun.core.config import EngineConfig, SamplingParams
from forerun.core.drafter_config import WITHOUT_MODEL, DrafterConfig, LayerSkip, NoDrafter
from forerun.core.model_spec import ModelSpec
from forerun.core.pace import read_device
from forerun.core.steps import PLAIN
from forerun.drafting.policies import BEST, Policies, TreePolicy
from forerun.engine.drafters import load_one
from forerun.engine.engine import Engine
from forerun.engine.model_loading import Checkpoint
from forerun.model.runner import Runner
from forerun.model.vocabulary_map import VocabularyMap
from forerun.sampling.noise import KeyedNoise
from forerun.sampling.sample import LogitShaper, topk
from forerun.text.prompt import Prompt
from forerun.text.vocabulary import require_match
from forerun_lab.bench.run.begun_rounds import propose_everywhere
from forerun_lab.planner.trace import LAYER_SKIP, AnswerTrace, Ids, LogProbs

NUM_CHILDREN: Final = 8  # recorded for every token, as many as a drafter is likely to use
ROWS_PER_PASS: Final = 64  # enough to be fast, few enough for the logits of a large vocabulary
# Trees of one level with all children: the guesses at a token, with the set that `forerun prepare` found, if any.
SKIPPING: Final = LayerSkip(depth=1, adaptive=False, search="off")
EVERY_CHILD: Final = Policies(tree=TreePolicy(num_children=NUM_CHILDREN, min_mass=0.0, looks_up=False))


@dataclass(kw_only=True)
class OfTarget:
    """What drafters without a model know while they are loaded."""

    policies: Policies
    spec: ModelSpec


class Recorder:
    """A target that writes answers, and drafters whose guesses are recorded."""

    def __init__(self, config: EngineConfig, draft: str | None, others: Sequence[str] = ()) -> None:
        """Load the models; the configuration's drafter and pace are not used.

        Args:
            draft: the draft model; None: none is recorded.
            others: further drafters to record: layer_skip, and those without a model.

        Raises:
            CheckpointError, VocabularyError: a model cannot be read, or the draft has other tokens than the target.
            ConfigError: layers of the target cannot be skipped.
        """
        device = read_device(config.device).torch_device
        own: DrafterConfig = NoDrafter()
        if others:  # the target's cache then needs room for proposals
            own = SKIPPING if LAYER_SKIP in others else WITHOUT_MODEL[others[0]]
        config = replace(config, drafter=own, device=device, measures_speedup=False)
        self.engine = Engine(config, policies=EVERY_CHILD)
        self._drafters = {
            name: load_one(WITHOUT_MODEL[name], OfTarget(policies=BEST, spec=self.engine.spec))
            if name in WITHOUT_MODEL
            else self.engine.drafting.held[name]
            for name in others
        }
        self._runner: Runner | None = None
        if draft is not None:
            self._load(draft, config)

    def _load(self, draft: str, config: EngineConfig) -> None:
        checkpoint = Checkpoint.open_draft(open_source(draft), config)
        tokenizer = checkpoint.source.tokenizer()
        require_match(self.engine.tokenizer, tokenizer, target_name=config.target, draft_name=draft)
        self._runner = checkpoint.load(exactness="fast", capacity=self.engine.max_length)
        self._vocabulary = checkpoint.source.vocabulary_map() or VocabularyMap.of_equal_ids(
            num_target=self.engine.spec.vocab_size, num_draft=self._runner.spec.vocab_size
        )

    def close(self) -> None:
        """Release the models."""
        self.engine.close()
        if self._runner is not None:
            self._runner.forget()

    def record(
        self, prompts: Sequence[Prompt], params: SamplingParams, on_answer: Callable[[int], None] | None = None
    ) -> Iterator[AnswerTrace]:
        """Yield a trace for every prompt; `on_answer` is called with the number done."""
        for number, prompt in enumerate(prompts, start=1):
            prompt_ids = self.engine.encode(prompt)
            answer = self.engine.generate(prompt_ids, params, drafter=PLAIN)
            if answer.token_ids:
                trace = self._trace(prompt_ids, answer.token_ids, replace(params, seed=answer.seed))
                yield self._with_others(trace, params) if self._drafters else trace
            if on_answer is not None:
                on_answer(number)

    def _trace(self, prompt_ids: Sequence[int], token_ids: tuple[int, ...], params: SamplingParams) -> AnswerTrace:
        nothing: tuple[tuple[()], ...] = ((),) * len(token_ids)
        children: Ids = nothing
        log_probs: LogProbs = nothing
        if self._runner is not None:
            noise = self._noise(params, self._runner.device)
            children, log_probs = guesses(self._runner, prompt_ids, token_ids, params, noise, self._vocabulary)
        return AnswerTrace(
            prompt_ids=tuple(prompt_ids),
            token_ids=token_ids,
            children=children,
            log_probs=log_probs,
            temperature=params.temperature,
            seed=None if params.is_greedy else params.seed,
        )

    def _with_others(self, trace: AnswerTrace, params: SamplingParams) -> AnswerTrace:
        """The trace, with the guesses of the other drafters."""
        engine = self.engine
        params = replace(params, seed=trace.seed)
        noise = self._noise(params, engine.config.device)
        with engine.verifier_after(trace.prompt_ids, params) as target:
            trees = engine.cores.run(
                lambda: propose_everywhere(target, self._drafters, trace.prompt_ids, trace.token_ids, params, noise)
            )
        skipping = trees.pop(LAYER_SKIP, ())  # of one level
        return replace(
            trace,
            skip_children=tuple(tuple(tree.token_ids[1:]) for tree in skipping),
            skip_log_probs=tuple(tuple(tree.log_probs[1:]) for tree in skipping),
            accepted={
                name: tuple(len(tree.descend(trace.token_ids[place:])) for place, tree in enumerate(proposals))
                for name, proposals in trees.items()
            },
        )

    def _noise(self, params: SamplingParams, device: str) -> KeyedNoise | None:
        if params.is_greedy or params.seed is None:
            return None
        return KeyedNoise(params.seed, self.engine.spec.vocab_size, device=device)


@torch.inference_mode()
def guesses(
    runner: Runner,
    prompt_ids: Sequence[int],
    token_ids: Sequence[int],
    params: SamplingParams,
    noise: KeyedNoise | None,
    vocabulary: VocabularyMap,
) -> tuple[Ids, LogProbs]:
    """A draft's children at every token of an answer, ranked as `DraftTree` ranks them.

    Args:
        runner: of the draft.
        noise: the target's sampling noise, None if greedy.
        vocabulary: maps the draft's ids to the target's.
    """
    prompt = vocabulary.read(prompt_ids)
    answer = vocabulary.read(token_ids)
    shaper = LogitShaper(
        params,
        vocabulary.num_columns,
        vocabulary.columns(prompt_ids),
        device=runner.device,
        truncate=runner.backend.truncate,
    )
    runner.forget()
    runner.sync(prompt[:-1])
    before = [prompt[-1], *answer[:-1]]
    column_ids = None if vocabulary.column_ids is None else vocabulary.column_ids.to(runner.device)
    children: list[tuple[int, ...]] = []
    log_probs: list[tuple[float, ...]] = []
    for start in range(0, len(before), ROWS_PER_PASS):
        rows = before[start : start + ROWS_PER_PASS]
        logits = runner.extend(rows, num_logit_rows=len(rows))[:, : vocabulary.num_columns]
        places = range(start, start + len(rows))
        paths = [vocabulary.columns(token_ids[:place]) for place in places] if shaper.needs_paths else None
        noise_here = None if noise is None else noise.at([len(prompt) + place for place in places])
        scores = shaper.shape(logits, paths)
        left = shaper.temperature_left
        ids, values = topk(scores, noise_here, NUM_CHILDREN, temperature=left, column_ids=column_ids)
        children += map(tuple, ids)
        log_probs += [tuple(min(value, 0.0) for value in row) for row in values]
    return tuple(children), tuple(log_probs)
