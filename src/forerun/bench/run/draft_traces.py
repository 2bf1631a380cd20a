"""Record a draft's guesses at every token of the target's answers, as traces for the planner."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import torch

from forerun.checkpoints.open import open_source
from forerun.core.config import EngineConfig, SamplingParams
from forerun.core.drafter_config import NoDrafter
from forerun.core.pace import read_device
from forerun.engine.engine import Engine
from forerun.engine.model_loading import Checkpoint, Progress
from forerun.engine.trace import AnswerTrace
from forerun.model.runner import Runner
from forerun.model.vocabulary_map import VocabularyMap
from forerun.sampling.noise import KeyedNoise
from forerun.sampling.sample import LogitShaper, topk
from forerun.text.prompt import Prompt
from forerun.text.vocabulary import require_match

NUM_CHILDREN: Final = 8  # recorded for every token, as many as a drafter is likely to use
ROWS_PER_PASS: Final = 64  # enough to be fast, few enough for the logits of a large vocabulary


class Recorder:
    """A target that writes answers, and a draft whose guesses are recorded."""

    def __init__(self, config: EngineConfig, draft: str, on_progress: Progress | None = None) -> None:
        """Load both models; the configuration's drafter and pace are not used.

        Raises:
            CheckpointError, VocabularyError: a model cannot be read, or the draft has other tokens than the target.
        """
        config = replace(config, drafter=NoDrafter(), device=read_device(config.device).torch_device)
        self.engine = Engine(config, on_progress)
        checkpoint = Checkpoint.open_draft(open_source(draft), config)
        tokenizer = checkpoint.source.tokenizer()
        require_match(self.engine.tokenizer, tokenizer, target_name=config.target, draft_name=draft)
        self._runner = checkpoint.load(
            config, exactness="fast", capacity=self.engine.max_length, pace=None, on_progress=on_progress
        )
        self._vocabulary = checkpoint.source.vocabulary_map() or VocabularyMap.of_equal_ids(
            num_target=self.engine.spec.vocab_size, num_draft=self._runner.spec.vocab_size
        )

    def close(self) -> None:
        """Release both models."""
        self.engine.close()
        self._runner.forget()

    def record(
        self, prompts: Sequence[Prompt], params: SamplingParams, on_answer: Callable[[int], None] | None = None
    ) -> Iterator[AnswerTrace]:
        """Yield a trace for every prompt; `on_answer` is called with the number done."""
        for number, prompt in enumerate(prompts, start=1):
            prompt_ids = self.engine.encode(prompt)
            answer = self.engine.generate(prompt_ids, params)
            if answer.token_ids:
                yield self._trace(prompt_ids, answer.token_ids, replace(params, seed=answer.seed))
            if on_answer is not None:
                on_answer(number)

    def _trace(self, prompt_ids: Sequence[int], token_ids: tuple[int, ...], params: SamplingParams) -> AnswerTrace:
        noise = None
        if not params.is_greedy and params.seed is not None:
            noise = KeyedNoise(params.seed, self.engine.spec.vocab_size, device=self._runner.device)
        teacher = Teacher(runner=self._runner, params=params, noise=noise, vocabulary=self._vocabulary)
        children, log_probs = teacher.guesses(prompt_ids, token_ids)
        return AnswerTrace(
            prompt_ids=tuple(prompt_ids),
            token_ids=token_ids,
            children=children,
            log_probs=log_probs,
            temperature=params.temperature,
            seed=None if params.is_greedy else params.seed,
        )


Ids = tuple[tuple[int, ...], ...]
LogProbs = tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Teacher:
    """Runs the draft over a given text.

    Args:
        noise: the target's sampling noise, None if greedy.
        vocabulary: maps the draft's ids to the target's.
    """

    runner: Runner
    params: SamplingParams
    noise: KeyedNoise | None
    vocabulary: VocabularyMap

    @torch.inference_mode()
    def guesses(self, prompt_ids: Sequence[int], token_ids: Sequence[int]) -> tuple[Ids, LogProbs]:
        """The draft's children at every token of the answer, ranked as `DraftTree` ranks them."""
        vocabulary = self.vocabulary
        prompt, answer = vocabulary.read(prompt_ids), vocabulary.read(token_ids)
        shaper = LogitShaper(
            self.params,
            vocabulary.num_columns,
            vocabulary.columns(prompt_ids),
            device=self.runner.device,
            truncate=self.runner.backend.truncate,
        )
        self.runner.forget()
        self.runner.sync(prompt[:-1])
        before = [prompt[-1], *answer[:-1]]
        column_ids = None if vocabulary.column_ids is None else vocabulary.column_ids.to(self.runner.device)
        children: list[tuple[int, ...]] = []
        log_probs: list[tuple[float, ...]] = []
        for start in range(0, len(before), ROWS_PER_PASS):
            rows = before[start : start + ROWS_PER_PASS]
            logits = self.runner.extend(rows, num_logit_rows=len(rows))[:, : vocabulary.num_columns]
            places = range(start, start + len(rows))
            paths = [vocabulary.columns(token_ids[:place]) for place in places] if shaper.needs_paths else None
            noise = None
            if self.noise is not None:
                noise = self.noise.at([len(prompt) + place for place in places])
            scores, left = shaper.shape(logits, paths), shaper.temperature_left
            ids, values = topk(scores, noise, NUM_CHILDREN, temperature=left, column_ids=column_ids)
            children += map(tuple, ids)
            log_probs += [tuple(min(value, 0.0) for value in row) for row in values]
        return tuple(children), tuple(log_probs)
