"""A distillation from beginning to end: the target writes, a draft is chosen and trained.

All that a run has done lies in the folder `distill` of the draft's folder, so that the same call goes on after any end,
and a call with more time goes on where a finished one stopped.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Final

from torch import Tensor

from forerun.checkpoints.open import open_source
from forerun.core.config import EngineConfig
from forerun.core.model_spec import ModelSpec
from forerun.distill.folder import write_draft
from forerun.distill.given_texts import read_given
from forerun.distill.initial import initial_weights
from forerun.distill.network import Network, read_network
from forerun.distill.openings import openings, turn_frame
from forerun.distill.pass_times import PassTimes, fastest_dtype
from forerun.distill.picture import draw_curves
from forerun.distill.reader import read_texts
from forerun.distill.run_log import RunLog
from forerun.distill.saved_draft import SavedDraft
from forerun.distill.sizes import choose_sizes, draft_spec
from forerun.distill.text_store import TextStore
from forerun.distill.trainer import batches
from forerun.distill.vocabulary import choose_vocabulary, count_tokens, enough_tokens
from forerun.distill.writer import Writer, WrittenText
from forerun.engine.model_loading import Checkpoint

WRITING_SHARE: Final = 0.45  # of the time; the rest is training
READING_SHARE: Final = (
    0.5  # of the writing at most, for texts that are given: they cost a third of what written ones do
)
SAVE_EVERY_S: Final = 25.0
SCORE_EVERY: Final = 0.05  # of the training
HELD_OUT: Final = 25  # every so many-th text is not learnt from
MAX_HELD_OUT: Final = 64
TEXTS_AT_ONCE: Final = 96
READ_AT_ONCE: Final = 16
LONGEST: Final = 1024  # tokens of a text

OnProgress = Callable[[str, float, float], None]  # what is being done, seconds spent, seconds in all


@dataclass(frozen=True, slots=True, kw_only=True)
class DistillConfig:
    """What a draft is made from.

    Args:
        engine: the target, and where it runs.
        out: the draft's folder.
        time_s: of writing and training, of all calls together.
        text: files that the target also reads, see `read_given`.
        questions: of users, which the target answers beside its own.
        num_layers, hidden_size, vocab_size: of the draft; None: what suits the target.
    """

    engine: EngineConfig
    out: Path
    time_s: float
    text: tuple[Path, ...] = ()
    questions: tuple[str, ...] = ()
    num_layers: int | None = None
    hidden_size: int | None = None
    vocab_size: int | None = None
    seed: int = 1


class Distillation:
    """One run in a folder."""

    def __init__(self, config: DistillConfig, on_progress: OnProgress) -> None:
        self._config, self._on_progress, self._device = config, on_progress, config.engine.device
        self._source = open_source(config.engine.target)
        self._checkpoint = Checkpoint.open(self._source, config.engine)
        self._tokenizer, self._stops = self._source.tokenizer(), self._source.stop_ids()
        folder = config.out / "distill"
        self._store, self._saved = TextStore(folder / "texts"), SavedDraft(folder / "training.pt")
        self._log, self._picture = RunLog(folder / "log.jsonl"), folder / "curves.png"

    def run(self) -> None:
        """Write, choose, train, and leave the draft in its folder.

        Raises:
            CheckpointError, ConfigError: the target, a file or a setting cannot be used.
        """
        until_s = WRITING_SHARE * self._config.time_s
        if self._store.seconds < until_s or not self._saved.exists:
            target = self._read_target()
            self._gather(target, until_s)
            if not self._saved.exists:
                self._choose(target.weights)
        self._train()

    def _read_target(self) -> Network:
        weights = self._source.weights(dtype=fastest_dtype(self._device), device=self._device)
        return read_network(self._checkpoint.spec, weights).requires_grad_(False)

    def _gather(self, target: Network, until_s: float) -> None:
        """Have texts for so many seconds in all, in files of `SAVE_EVERY_S` each."""
        fresh: list[WrittenText] = []
        began = perf_counter()
        for texts in self._gathered(target, until_s):
            fresh += texts
            elapsed = perf_counter() - began
            is_over = self._store.seconds + elapsed >= until_s
            self._on_progress("the target writes", self._store.seconds + elapsed, self._config.time_s)
            if fresh and (is_over or elapsed > SAVE_EVERY_S):
                self._store.add(fresh, elapsed)
                fresh, began = [], perf_counter()
                if is_over:
                    return

    def _gathered(self, target: Network, until_s: float) -> Iterator[list[WrittenText]]:
        """Texts as they are finished: given ones while there are any and it is their time, then written ones."""
        given = [text for path in self._config.text for text in read_given(path, self._tokenizer, self._stops)]
        random.Random(self._config.seed).shuffle(given)
        for start in range(self._store.num_texts, len(given), READ_AT_ONCE):
            if self._store.seconds > READING_SHARE * until_s:
                break
            yield read_texts(target, given[start : start + READ_AT_ONCE])
        order = random.Random(f"{self._config.seed} {self._store.num_files}")
        writer = Writer(
            target,
            openings(self._tokenizer, self._config.questions, self._first_token(), order),
            stop_ids=self._stops,
            num_texts=TEXTS_AT_ONCE,
            num_slots=min(LONGEST, self._checkpoint.spec.max_positions),
            seed=order.getrandbits(32),
        )
        while True:
            yield writer.step()

    def _first_token(self) -> int | None:
        """What a text without a chat template begins with."""
        return next(iter([*self._tokenizer.encode(""), *self._stops]), None)

    def _choose(self, weights: dict[str, Tensor]) -> None:
        """The draft's tokens and sizes, and its weights before training."""
        spec = self._checkpoint.spec
        counts_V = count_tokens(self._store.read(), spec.vocab_size).to(self._device)
        always = [*self._stops, *(turn_frame(self._tokenizer).after if self._tokenizer.has_chat_template else ())]
        size = self._config.vocab_size or enough_tokens(counts_V)
        vocabulary = choose_vocabulary(counts_V, size, always, weights["embedding.weight"])
        draft = self._choose_sizes(spec, len(vocabulary.target_ids))
        self._saved.create(draft, vocabulary, initial_weights(spec, weights, draft, vocabulary))

    def _choose_sizes(self, spec: ModelSpec, vocab_size: int) -> ModelSpec:
        config, times = self._config, PassTimes(self._checkpoint, self._config.engine)
        if config.num_layers is not None or config.hidden_size is not None:
            return draft_spec(spec, vocab_size, num_layers=config.num_layers or 2, hidden_size=config.hidden_size)
        return choose_sizes(spec, vocab_size, times.of_draft, times.of_target())

    def _train(self) -> None:
        """Train until the time is over, and leave the draft in its folder."""
        texts = self._store.read()
        held_out = texts[::HELD_OUT][:MAX_HELD_OUT]
        learnt = [text for place, text in enumerate(texts) if place % HELD_OUT or place >= HELD_OUT * MAX_HELD_OUT]
        trainer, trained_s = self._saved.open(self._device)
        total_s = max(self._config.time_s - self._store.seconds, trained_s)
        order = random.Random(f"{self._config.seed} {trainer.num_tokens}")
        saved_s, scored_s = trained_s, -total_s
        while trained_s < total_s:
            for batch in batches(learnt, order):
                began = perf_counter()
                loss = trainer.step(batch, trained_s / total_s)
                trained_s += perf_counter() - began
                self._log.add(kind="step", trained_s=round(trained_s, 2), num_tokens=trainer.num_tokens, loss=loss)
                self._on_progress("the draft learns", self._store.seconds + trained_s, self._config.time_s)
                if trained_s - scored_s > SCORE_EVERY * total_s:
                    self._log.add(kind="score", trained_s=round(trained_s, 2), **asdict(trainer.score(held_out)))
                    scored_s = trained_s
                if trained_s - saved_s > SAVE_EVERY_S:
                    self._saved.keep(trainer, trained_s)
                    saved_s = trained_s
                if trained_s >= total_s:
                    break
        self._log.add(kind="score", trained_s=round(trained_s, 2), **asdict(trainer.score(held_out)))
        self._saved.keep(trainer, trained_s)
        draw_curves(self._log.read(), self._picture)
        network, vocabulary = trainer.network, trainer.vocabulary
        write_draft(self._config.out, network.spec, network.weights, vocabulary, self._tokenizer, self._stops)
