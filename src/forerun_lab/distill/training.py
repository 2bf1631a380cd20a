"""Train a draft on the texts of a store until its time is over."""

import random
from collections.abc import Callable
from dataclasses import asdict
from time import perf_counter
from typing import Final
from zlib import crc32

from forerun_lab.distill.config import DistillStop
from forerun_lab.distill.run_place import RunLog, SavedDraft
from forerun_lab.distill.text_store import TextStore
from forerun_lab.distill.trainer import Score, batches
from forerun_lab.distill.writer import WrittenText

SCORE_EVERY: Final = 0.05  # of the training
HELD_OUT: Final = 25  # one text in 25 is held out
MAX_HELD_OUT: Final = 64
BEGINNING: Final = 48  # tokens by which a text is known, or its whole opening if that is longer


class Texts:
    """The texts to learn from and the held-out texts, which answer other questions. A hash of a text's beginning
    decides, so the split is the same in every run.

    Attributes:
        all: the texts of both groups.
    """

    def __init__(self, store: TextStore) -> None:
        self._store = store
        self.all = store.read()

    def find_new(self) -> None:
        """Add the texts that other processes have written since."""
        self.all += self._store.read(self._store.find_new())

    @property
    def seconds(self) -> float:
        """Seconds that the main process took to write its texts."""
        return self._store.seconds

    @property
    def held_out(self) -> list[WrittenText]:
        chosen = sorted((text for text in self.all if _mark(text) % HELD_OUT == 0), key=_mark)
        most = min(MAX_HELD_OUT, len(self.all) - 1)  # leave at least one to learn from
        return chosen[:most] or sorted(self.all, key=_mark)[:1]

    @property
    def learnt(self) -> list[WrittenText]:
        held_out = self.held_out
        marks = set(map(_mark, held_out))
        places = set(map(id, held_out))
        others = [text for text in self.all if _mark(text) not in marks]
        return others or [text for text in self.all if id(text) not in places]  # all texts may begin alike


class Training:
    """The training of a draft whose state is saved in a file.

    Attributes:
        score: the draft's latest score.
    """

    def __init__(self, saved: SavedDraft, log: RunLog, texts: Texts, *, device: str, seed: int) -> None:
        self._saved = saved
        self._log = log
        self._texts = texts
        self._seed = seed
        self.trainer, self._saved_s = saved.open(device)
        log.forget_after(self._saved_s)
        self._scored_tokens = -1
        self._began = perf_counter()

    @property
    def seconds(self) -> float:
        """Seconds spent so far, earlier runs included."""
        return self._saved_s + perf_counter() - self._began

    def run(self, total_s: float, save_every_s: float, on_progress: Callable[[float, float, Score], None]) -> None:
        """Train until `total_s` seconds are spent in all.

        Args:
            on_progress: called with the seconds, the loss and the latest score; if it raises DistillStop, the run ends
                after everything is saved.
        """
        scored_s = self._score()
        order = random.Random(f"{self._seed} {self.trainer.num_tokens}")
        try:
            while self.seconds < total_s:
                self._texts.find_new()
                for batch in batches(self._texts.learnt, order, self.trainer.tokens_per_step):
                    loss = self.trainer.step(batch, self.seconds / total_s)
                    self._note("step", num_tokens=self.trainer.num_tokens, loss=loss)
                    on_progress(self.seconds, loss, self.score)
                    if self.seconds - scored_s > SCORE_EVERY * total_s:
                        scored_s = self._score()
                    if perf_counter() - self._began > save_every_s:
                        self._keep()
                    if self.seconds >= total_s:
                        break
        except DistillStop:
            self._keep()
            raise
        if self.trainer.num_tokens != self._scored_tokens:
            self._score()
        self._keep()

    def _score(self) -> float:
        """Score the draft; returns the seconds spent so far."""
        self.score = self.trainer.score(self._texts.held_out)
        self._scored_tokens = self.trainer.num_tokens
        self._note("score", **asdict(self.score))
        return self.seconds

    def _note(self, kind: str, **values: float) -> None:
        self._log.add(kind=kind, trained_s=round(self.seconds, 2), **values)

    def _keep(self) -> None:
        seconds = self.seconds
        self._saved.keep(self.trainer, seconds)
        self._saved_s, self._began = seconds, self._began + (seconds - self._saved_s)


def _mark(text: WrittenText) -> int:
    """A hash of a text's beginning, the same for all answers to a question."""
    return crc32(text.token_ids[: max(BEGINNING, text.num_given)].numpy().tobytes())
