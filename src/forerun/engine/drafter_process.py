"""The main program of a drafter's process: load the draft model, then serve targets."""

import os
import socket
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from threading import Event, Thread
from time import monotonic

import torch

from forerun.checkpoints.open import open_source
from forerun.core.affinity import usable_cores
from forerun.core.config import EngineConfig
from forerun.core.errors import RankLostError
from forerun.core.pace import read_device
from forerun.core.sublayers import NOTHING, SkipSet
from forerun.drafting.draft_rows import MAX_CATCH_UP, OwnRows
from forerun.drafting.draft_tree import DraftTree
from forerun.drafting.guessed_tree import GuessedTree
from forerun.drafting.remote.frames import KINDS
from forerun.drafting.remote.messages import Beat, Failure, Hello, Setup
from forerun.drafting.remote.waiting import TREES_PER_CUT
from forerun.drafting.remote.worker import BEAT_S, LoadedDraft, serve
from forerun.engine.model_loading import Checkpoint, resolve_max_length
from forerun.engine.shared_model import load_shared
from forerun.engine.threads_and_cores import allowed_threads
from forerun.model.runner import Runner
from forerun.model.vocabulary_map import VocabularyMap
from forerun.sampling.noise import KeyedNoise
from forerun.text.vocabulary import Vocabulary
from forerun.wires.channel import Channel
from forerun.wires.children import die_with_parent
from forerun.wires.endpoint import Address, Admission, listen
from forerun.wires.forkserver import run_forkserver

TREE_ROWS = 256  # rows of the draft cache after the committed text
HANDSHAKE_S = 5.0
LOADING_S = 600.0  # after which a process that loads its model counts as hanging


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterProcess:
    """Configuration of one drafter process.

    Args:
        config: the draft model as the target of this process; its device may be paced.
        max_length: most tokens of the target's text; None: as many as the draft model allows.
        cores: CPU cores to run on; empty: any.
        unused: sublayers of the model that are never loaded.
    """

    config: EngineConfig
    max_length: int | None
    cores: tuple[int, ...]
    unused: SkipSet = NOTHING

    def under_engine(self, descriptor: int, parent: int) -> None:
        """Run as an engine's forkserver; the engine holds the other end of the control socket `descriptor`.

        Args:
            parent: the engine's pid if this process is to be killed with it at once, else 0.
        """
        if parent:
            die_with_parent(parent)
        torch.set_num_threads(1)  # a thread pool does not survive a fork
        control = socket.socket(fileno=descriptor)
        if read_device(self.config.device).torch_device == "cpu" and self.config.target_ranks == 1:
            run_forkserver(control, self._load, self._serve)
        else:  # a GPU's context does not survive a fork either, and other ranks follow only one leader
            run_forkserver(control, lambda: None, lambda channel, _: self._load_and_serve(channel))

    def listen(self, address: Address, key: bytes | None, on_ready: Callable[[Address], None]) -> None:
        """Serve targets that connect, one after another, until interrupted; `on_ready` gets the address."""
        with listen(address, key) as listener, closing(Admission(listener, key, handshake_s=HANDSHAKE_S)) as admission:
            self._stay_on_cores()  # before other ranks are started, which inherit these cores
            draft = self._load()
            server, port = listener.getsockname()[:2]
            on_ready(Address(server=server, port=port))
            while True:
                connection = admission.accept(HANDSHAKE_S)
                if connection is not None:
                    with closing(Channel(connection)) as channel:
                        self._serve(channel, draft)

    def _load_and_serve(self, channel: Channel) -> None:
        self._stay_on_cores()
        try:
            draft = beating(channel, self._load)
        except RankLostError as error:
            channel.send(KINDS.to_frame(Failure.of(str(error))))
            raise SystemExit(1) from None
        try:
            self._serve(channel, draft)
        except RankLostError:
            raise SystemExit(1) from None  # the engine has received the reason

    def _serve(self, channel: Channel, draft: LoadedDraft) -> None:
        self._stay_on_cores()
        torch.set_num_threads(allowed_threads(self.config.num_threads or 1, usable_cores()))
        with torch.inference_mode():
            serve(channel, draft)

    def _stay_on_cores(self) -> None:
        if self.cores and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, self.cores)

    def _load(self) -> LoadedDraft:
        config = self.config if self.max_length is None else replace(self.config, max_length=self.max_length)
        checkpoint = Checkpoint.open(open_source(config.target), config)
        max_length = self.max_length or resolve_max_length(config, checkpoint.spec)
        # Rounding in the draft changes no token, so it always uses the fast kernels.
        capacity = max_length + TREE_ROWS
        if config.target_ranks > 1:
            choice = checkpoint.choose_backend("fast")
            runner = load_shared(
                checkpoint,
                config,
                choice,
                role="draft",
                exactness="fast",
                capacity=capacity,
                pace=checkpoint.placement.draft,
                num_threads=config.num_threads or 1,
            )
        else:
            runner = checkpoint.load(
                exactness="fast",
                capacity=capacity,
                cache_bytes=config.cache_bytes,
                pace=checkpoint.placement.draft,
                unused=self.unused,
            )
        vocabulary = checkpoint.source.vocabulary_map()
        num_ids = runner.spec.vocab_size if vocabulary is None else len(vocabulary.draft_ids)
        runner.extend([0], num_logit_rows=1)  # warm-up: libraries select and load their kernels here
        runner.forget()
        return LoadedDraft(
            hello=Hello(
                pid=os.getpid(),
                vocab_size=num_ids,
                max_length=max_length,
                vocabulary=Vocabulary.of(checkpoint.source.tokenizer()).to_bytes(),
                known=b"" if vocabulary is None else vocabulary.known_bits,
            ),
            grower=lambda setup: grow_with(runner, setup, vocabulary),
            noise=lambda seed, vocab_size: KeyedNoise(seed, max(vocab_size, num_ids), device=checkpoint.device),
        )


def beating(channel: Channel, load: Callable[[], LoadedDraft]) -> LoadedDraft:
    """Return what `load` returns; meanwhile send heartbeats, so that the target does not replace this process."""
    end = Event()
    deadline = monotonic() + LOADING_S

    def beat() -> None:
        while not end.wait(BEAT_S) and monotonic() < deadline:
            channel.send(KINDS.to_frame(Beat(request=0)))

    thread = Thread(target=beat, name="beats", daemon=True)
    thread.start()
    try:
        return load()
    finally:
        end.set()
        thread.join()


def grow_with(runner: Runner, setup: Setup, vocabulary: VocabularyMap | None = None) -> DraftTree:
    """The tree for a target's setup, on this runner; `vocabulary` maps its ids to the target's."""
    rows = OwnRows(runner, TREE_ROWS)
    num_target = setup.target_vocab_size
    return DraftTree(guesses_ahead(setup), rows, target_vocab_size=num_target, vocabulary=vocabulary)


def guesses_ahead(setup: Setup) -> GuessedTree:
    """The guessed tree for a target's setup, with its policies."""
    return GuessedTree(
        replace(setup.tree, min_mass=0.0),  # expansions run in idle time, so each is worth its cost
        verify_width=setup.verify_width,
        draft_width=min(setup.draft_width, TREE_ROWS - MAX_CATCH_UP),
        horizon=setup.verify_width * TREES_PER_CUT,
        keeps_subtree=True,
        calibrates=setup.policy.calibrates,
        foresees=setup.policy.foresees and setup.draft_width > 1,
    )
