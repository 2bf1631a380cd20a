"""The target reads and writes texts for a given time, also on other devices, and they are saved in the store."""

import multiprocessing
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from time import perf_counter
from typing import Final

import torch

from forerun_lab.distill.config import DistillConfig, DistillStop
from forerun_lab.distill.network import Network
from forerun_lab.distill.openings import Openings
from forerun_lab.distill.reader import GivenText, read_texts
from forerun_lab.distill.text_store import TextStore
from forerun_lab.distill.writer import TextWriter, UnfinishedText, WrittenText

READING_SHARE: Final = 0.5  # limit on the share of time for given texts: reading one costs a third of writing one
TEXTS_AT_ONCE: Final = 96  # a pass of 96 rows costs two cores as much per row as one of 200
MOST_TEXTS: Final = 2048  # on a GPU: with more, the host takes longer than the device
READ_AT_ONCE: Final = 16
FEWEST_TEXTS: Final = 2  # one to learn from, one held out


class Gathering:
    """Fills a store with texts of one target.

    Args:
        given: texts that the target did not write.
        store: may already hold texts of earlier runs.
        save_every_s: seconds between saves.
    """

    def __init__(
        self,
        target: Network,
        openings: Openings,
        given: Sequence[GivenText],
        store: TextStore,
        *,
        stop_ids: Sequence[int],
        seed: str,
        save_every_s: float,
    ) -> None:
        self._target = target
        self._openings = openings
        self._given = given
        self._store = store
        self._stop_ids = stop_ids
        self._seed = seed
        self._save_every_s = save_every_s
        self._fresh: list[WrittenText] = []
        self._writer: TextWriter | None = None
        self._left = store.unfinished()
        self._began = perf_counter()

    @property
    def seconds(self) -> float:
        """Seconds spent so far, earlier runs included."""
        return self._store.seconds + perf_counter() - self._began

    def run(self, until_s: float, on_progress: Callable[[float, int], None]) -> None:
        """Gather texts until `until_s` seconds are spent in all. Texts that are unfinished then are used as they are.

        Args:
            on_progress: called with the seconds spent and the number of texts; if it raises DistillStop, the run ends
                after all texts, unfinished ones too, are saved.
        """
        try:
            for texts in self._gathered(until_s):
                self._fresh += texts
                on_progress(self.seconds, self._store.num_texts + len(self._fresh))
                if self.seconds >= until_s and self._has_enough():
                    break
                if perf_counter() - self._began >= self._save_every_s:
                    self._keep()
        except DistillStop:
            self._keep()
            raise
        self._fresh += [left.read for left in self._unfinished()]
        self._writer = None
        self._left = []
        self._keep()

    def _gathered(self, until_s: float) -> Iterator[list[WrittenText]]:
        """Texts as they are finished: given texts until none are left or their time is over, then written texts."""
        known = set(self._store.known_ids()) if self._given else set()
        fresh = [text for text in self._given if tuple(text[0]) not in known]
        random.Random(self._seed).shuffle(fresh)
        for start in range(0, len(fresh), READ_AT_ONCE):
            if self.seconds > READING_SHARE * until_s:
                break
            yield read_texts(self._target, fresh[start : start + READ_AT_ONCE])
        order = random.Random(f"{self._seed} {self._store.num_files}")
        self._writer = TextWriter(
            self._target,
            self._openings.draw(order),
            stop_ids=self._stop_ids,
            num_texts=texts_at_once(self._target, self._openings.longest),
            num_slots=self._openings.longest,
            seed=order.getrandbits(32),
            prefix=self._openings.prefix,
            unfinished=self._left,
        )
        while True:
            yield self._writer.step()

    def _has_enough(self) -> bool:
        """Whether there is a text to learn from and one to hold out."""
        found = [*self._fresh, *(left.read for left in self._unfinished())]
        return self._store.num_texts + sum(text.num_rows > 0 for text in found) >= FEWEST_TEXTS

    def _keep(self) -> None:
        self._store.add(self._fresh, perf_counter() - self._began, self._unfinished())
        self._fresh = []
        self._began = perf_counter()

    def _unfinished(self) -> Sequence[UnfinishedText]:
        return self._left if self._writer is None else self._writer.unfinished()


def texts_at_once(target: Network, num_slots: int) -> int:
    """As many texts as a GPU has memory for, within a limit; on a CPU, as many as it computes efficiently."""
    like = target.output
    spec = target.spec
    if like.device.type != "cuda":
        return TEXTS_AT_ONCE
    bytes_per_text = 2 * spec.num_layers * spec.kv_size * like.element_size() * num_slots
    free_bytes, _ = torch.cuda.mem_get_info(like.device)
    return max(1, min(MOST_TEXTS, free_bytes // 2 // bytes_per_text))


END_S: Final = 10.0  # time to end before a process is killed


@contextmanager
def writing_elsewhere(config: DistillConfig, write: Callable[[DistillConfig, str], None]) -> Iterator[None]:
    """Write texts on the other devices inside the `with` block; training adds them at its next pass over the texts.

    Args:
        write: a module-level function that writes texts while `is_wanted`; gets the config and a name for its files.
    """
    context = multiprocessing.get_context("spawn")
    processes = [
        context.Process(target=write, args=(on_device(config, device), device.replace(":", "")), daemon=True)
        for device in others(config)
    ]
    for process in processes:
        process.start()
    try:
        yield
    finally:
        for process in processes:
            process.terminate()
            process.join(END_S)
            process.kill()


def others(config: DistillConfig) -> tuple[str, ...]:
    """The devices that do not train: those in the config, else every other GPU if the device is "cuda"."""
    if config.other_devices is not None:
        return config.other_devices
    count = torch.cuda.device_count() if config.engine.device == "cuda" else 1
    return tuple(f"cuda:{number}" for number in range(1, count))


def on_device(config: DistillConfig, device: str) -> DistillConfig:
    """The config for another device, without the given texts, which the first process reads."""
    return replace(config, engine=replace(config.engine, device=device), text=())


def is_wanted() -> bool:
    """Called in a writing process: whether the training process is still alive."""
    parent = multiprocessing.parent_process()
    return parent is not None and parent.is_alive()
