"""A whole distillation: the target writes texts, then a draft is chosen and trained.

The state of a run is saved in the folder `distill` of the draft's folder, so that the same call resumes an interrupted
run, and a call with more time continues a finished one.
"""

from contextlib import suppress
from functools import partial
from math import inf
from os import getpid
from typing import Final

from torch import Tensor

from forerun.checkpoints.open import open_source
from forerun.core.model_spec import ModelSpec
from forerun.core.threads import on_threads
from forerun.engine.model_loading import Checkpoint
from forerun.engine.opening import tokenizer_of
from forerun.engine.threads_and_cores import CorePlacement
from forerun_lab.distill.assess import assess, prompts_of
from forerun_lab.distill.config import DistillConfig, DistillProgress, DistillStop, OnProgress
from forerun_lab.distill.draft_shape import (
    PassTimes,
    choose_sizes,
    choose_vocabulary,
    count_tokens,
    draft_spec,
    enough_tokens,
    initial_weights,
    require_sizes,
)
from forerun_lab.distill.folder import write_draft, write_head
from forerun_lab.distill.gathering import Gathering, is_wanted, writing_elsewhere
from forerun_lab.distill.head_shape import TRAINABLE, choose_head, initial_head
from forerun_lab.distill.network import HeadNetwork, Network, fastest_dtype, read_network, require_llama
from forerun_lab.distill.openings import Openings, require_known
from forerun_lab.distill.reader import read_given
from forerun_lab.distill.report import DistillReport, draw_curves
from forerun_lab.distill.run_place import RunLog, RunPlace, SavedDraft, SavedHead, require_room
from forerun_lab.distill.text_store import MAIN, TextStore
from forerun_lab.distill.trainer import Score, require_optimizer
from forerun_lab.distill.training import Texts, Training

WRITING_SHARE: Final = 0.45  # of the time; the rest is training
LEAST_TRAINING: Final = 0.25  # least share of the time that goes to training, even if the texts took too long
LONGEST: Final = 1024  # tokens of a text
ASSESSED_SHARE: Final = 0.01  # of the time, for plain decoding, which the draft is compared with
MIN_ASSESSED_S = 3.0
MAX_ASSESSED_S = 60.0
DEFAULT_LAYERS: Final = 2  # if only a width is given


class Distillation:
    """One run in a folder."""

    def __init__(self, config: DistillConfig, name: str = MAIN) -> None:
        """Read and check everything that can be checked before the target's weights are needed.

        Args:
            name: the name of a process that only writes texts.

        Raises:
            CheckpointError, ConfigError: the target, a file or a setting cannot be used.
        """
        require_optimizer()
        self._config = config
        self._head = TRAINABLE.get(config.kind)
        if self._head is not None:
            self._head.require_settings(config)
        self._device = config.engine.device
        self._source = open_source(config.engine.target)
        self._checkpoint = Checkpoint.open(self._source, config.engine)
        self._spec = spec = self._checkpoint.spec
        require_llama(spec, min(LONGEST, spec.max_positions))
        require_sizes(spec, config.hidden_size)
        self._tokenizer = tokenizer_of(self._source, config.engine.chat_template)
        self._stops = [id_ for id_ in self._source.stop_ids() if id_ < spec.vocab_size]  # a file may list unknown ids
        longest = min(LONGEST, spec.max_positions)
        self.openings = Openings.of(
            self._tokenizer, config.questions, self._stops, vocab_size=spec.vocab_size, longest=longest
        )
        self._given = [text for path in config.text for text in read_given(path, self._tokenizer, self._stops, longest)]
        require_known((*self.openings.given, *(ids for ids, _ in self._given)), spec.vocab_size)
        require_room(config, spec)
        folder = config.run_folder
        self._name = name
        self._store = partial(TextStore, folder / "texts", name)
        path = folder / "training.safetensors"
        self._saved = SavedDraft(path) if self._head is None else SavedHead(path, self._head, self._read_target)
        self._log = RunLog(folder / "log.jsonl")
        self._picture = folder / "curves.png"

    def run(self, on_progress: OnProgress) -> DistillReport:
        """Write texts, choose a draft, train it, write it to its folder, and measure it.

        Raises:
            DistillStop: `on_progress` stopped the run; everything is saved, and the next run resumes it.
            ConfigError: the folder belongs to another run.
        """
        place = RunPlace(self._config, self._source.identity())
        try:
            num_threads = CorePlacement.of(self._config.engine).num_threads
            training, texts = on_threads(num_threads, lambda: self._run(on_progress))
            return self._report(training, texts, on_progress)
        finally:
            place.close()

    def write_on(self) -> None:
        """Add texts to the store while the training process, which holds the folder's lock, is alive."""

        def look(seconds: float, num_texts: int) -> None:
            if not is_wanted():
                raise DistillStop

        self._gathering(self._store(), self._read_target()).run(inf, look)

    def _run(self, on_progress: OnProgress) -> tuple[Training, Texts]:
        store = self._store()
        until_s = WRITING_SHARE * self._config.time
        if store.seconds < until_s or not self._saved.exists:
            is_chosen = self._saved.exists or self._is_sized or self._head is not None
            target_s = None if is_chosen else self._times.of_target()
            target = self._read_target()

            def tell(seconds: float, num_texts: int) -> None:
                self._tell(on_progress, "the target writes", seconds, f"{num_texts} texts")

            self._gathering(store, target).run(until_s, tell)
            if not self._saved.exists:
                self._choose(store, target.weights, target_s)
            del target
        with writing_elsewhere(self._config, write_texts):
            return self._train(store, on_progress)

    def _read_target(self) -> Network:
        weights = self._source.weights(dtype=fastest_dtype(self._device), device=self._device)
        return read_network(self._spec, weights).requires_grad_(False)

    def _gathering(self, store: TextStore, target: Network) -> Gathering:
        return Gathering(
            target,
            self.openings,
            self._given,
            store,
            stop_ids=self._stops,
            seed=f"{self._config.seed} {self._name}",
            save_every_s=self._config.save_every_s,
        )

    @property
    def _is_sized(self) -> bool:
        return self._config.layers is not None or self._config.hidden_size is not None

    @property
    def _times(self) -> PassTimes:
        return PassTimes(self._checkpoint)

    def _choose(self, store: TextStore, weights: dict[str, Tensor], target_s: float | None) -> None:
        """Choose the draft's tokens, sizes and initial weights, and save them."""
        counts_V = count_tokens(store.read(), self._spec.vocab_size).to(self._device)
        frame = self.openings.frame
        always = [*self._stops, *(frame.after if frame is not None else ())]
        size = self._config.vocab_size or enough_tokens(counts_V)
        if self._head is not None and self._head.has_all_tokens:
            size = self._spec.vocab_size
        vocabulary = choose_vocabulary(counts_V, size, always, weights["embedding.weight"])
        if self._head is not None:
            head = choose_head(self._spec, self._head, vocabulary, counts_V, self._config.layers)
            first = initial_head(self._head, head, weights, self._spec.num_layers, vocabulary, self._config.seed)
            self._saved.create(head, vocabulary, first)
            return
        draft = self._choose_sizes(len(vocabulary.target_ids), target_s)
        start = initial_weights(self._spec, weights, draft, vocabulary, self._config.seed)
        self._saved.create(draft, vocabulary, start)

    def _choose_sizes(self, vocab_size: int, target_s: float | None) -> ModelSpec:
        config = self._config
        if target_s is not None:
            return choose_sizes(self._spec, vocab_size, self._times.of_draft, target_s)
        layers = config.layers or DEFAULT_LAYERS
        return draft_spec(self._spec, vocab_size, num_layers=layers, hidden_size=config.hidden_size)

    def _train(self, store: TextStore, on_progress: OnProgress) -> tuple[Training, Texts]:
        """Train until the time is over, and write the draft to its folder."""
        config = self._config
        texts = Texts(store)
        training = Training(self._saved, self._log, texts, device=self._device, seed=config.seed)

        def tell(seconds: float, loss: float, score: Score) -> None:
            hits = f"first guess right {score.hits:.0%}, one of four {score.hits_of_several:.0%}"
            self._tell(on_progress, "the draft learns", texts.seconds + seconds, f"loss {loss:.2f}; held out: {hits}")

        total_s = max(config.time - texts.seconds, LEAST_TRAINING * config.time)
        training.run(total_s, config.save_every_s, tell)
        draw_curves(self._log.read(), self._picture)
        network = training.trainer.network
        vocabulary = training.trainer.vocabulary
        if isinstance(network, HeadNetwork):
            assert self._head is not None, "a head is trained"
            write_head(config.out, self._head, network.spec, network.weights, vocabulary)
        else:
            write_draft(config.out, network.spec, network.weights, vocabulary, self._tokenizer, self._stops)
        return training, texts

    def _tell(self, on_progress: OnProgress, doing: str, seconds: float, detail: str) -> None:
        on_progress(DistillProgress(doing=doing, seconds=seconds, total_s=self._config.time, detail=detail))

    def _report(self, training: Training, texts: Texts, on_progress: OnProgress) -> DistillReport:
        """Measure the draft, and write the report and the model card."""
        network = training.trainer.network
        config = self._config
        prompts = prompts_of(texts.held_out, self.openings)
        doing = partial(self._tell, on_progress, "the draft is measured", config.time, "")
        max_s = min(max(ASSESSED_SHARE * config.time, MIN_ASSESSED_S), MAX_ASSESSED_S)
        worth = assess(config.engine, str(config.out), prompts, max_s=max_s, on_text=doing) if prompts else []
        report = DistillReport(
            target=config.engine.target,
            identity=self._source.identity(),
            writing_s=texts.seconds,
            training_s=training.seconds,
            num_texts=len(texts.all),
            num_tokens=sum(len(text.token_ids) for text in texts.all),
            num_learnt_tokens=training.trainer.num_tokens,
            spec=network.body,
            num_parameters=sum(weight.numel() for weight in network.weights.values()),
            kind=config.kind,
            target_vocab_size=self._spec.vocab_size,
            score=training.score,
            worth=worth,
        )
        report.write(config.out)
        return report


def write_texts(config: DistillConfig, device: str) -> None:
    """Write texts in a separate process; its process id in the file names keeps them distinct."""
    with suppress(DistillStop):
        Distillation(config, name=f"{device}-{getpid()}").write_on()
