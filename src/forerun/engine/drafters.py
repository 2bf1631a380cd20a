"""Load the drafters of an engine, in this process or in a separate one, by the table of `core.drafter_config`."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any, Final

from forerun.backends.backend import Backend
from forerun.checkpoints.open import open_source
from forerun.core.config import EngineConfig
from forerun.core.drafter_config import (
    DRAFTERS,
    Automatic,
    DraftConfig,
    DrafterConfig,
    DraftHead,
    DraftModel,
    LayerSkip,
    NoDrafter,
    Parallel,
    drafter_name,
)
from forerun.core.errors import CheckpointError, ConfigError, VocabularyError
from forerun.core.model_spec import CacheFormat, ModelSpec
from forerun.core.pace import read_device
from forerun.core.sublayers import write_skips
from forerun.decoding.drafters import Drafters
from forerun.drafting.draft_model import DraftModelDrafter, serial_rows
from forerun.drafting.drafter import Drafter, ReadsFeatures
from forerun.drafting.heads.kind import StoredHead
from forerun.drafting.heads.loading import HeadLoading
from forerun.drafting.heads.stored import find_head, find_inner_head
from forerun.drafting.layer_skip.set_files import first_set
from forerun.drafting.policies import Loading, Policies, TreePolicy
from forerun.drafting.remote.connection import WorkerSupply
from forerun.drafting.remote.drafter import ParallelDrafter
from forerun.drafting.remote.messages import Hello
from forerun.engine.known_draft import draft_of
from forerun.engine.learnt import LearntFile
from forerun.engine.model_loading import Checkpoint, LazyTarget, Progress, draft_cache, rows_behind
from forerun.engine.rank_weights import output_weight
from forerun.engine.self_drafter import known_sets
from forerun.engine.shared_model import device_of, require_devices
from forerun.engine.threads_and_cores import CorePlacement
from forerun.model.runner import Runner
from forerun.speculation.referee.costs import is_small_enough
from forerun.text.tokenizer import Tokenizer
from forerun.text.vocabulary import Vocabulary, find_map_fault, find_mismatch
from forerun.wires.endpoint import Address, read_key
from forerun.wires.worker_processes import LocalSupply, RemoteSupply

ALONE: Final[Mapping[str, Any]] = {"target_ranks": 1, "remote_ranks": 0, "rank_address": None, "rank_key_file": None}


class DrafterLoader:
    """Opens drafters for one target, which the backend runs."""

    def __init__(
        self,
        config: EngineConfig,
        policies: Policies,
        checkpoint: Checkpoint,
        tokenizer: Tokenizer,
        max_length: int,
        cores: CorePlacement,
        learnt: LearntFile,
        backend: Backend,
    ) -> None:
        self._config = config
        self.checkpoint = checkpoint
        self.spec = checkpoint.spec
        self._tokenizer = tokenizer
        self._max_length = max_length
        self.policies = policies
        self._cores = cores
        self._learnt = learnt
        self._backend = backend
        self._judged: tuple[bytes, str | None] | None = None  # last vocabulary checked, and its fault

    def load(
        self, drafter: DrafterConfig, load_target: Callable[[int], Runner], on_progress: Progress | None
    ) -> tuple[Drafters, Runner]:
        """Load the drafters and the target, which some drafters need first.

        Args:
            load_target: called with the number of cache rows needed after the text.

        Raises:
            CheckpointError, VocabularyError: a draft model cannot be read, or does not fit the target.
        """
        self.on_progress = on_progress
        self.target = LazyTarget(load_target)
        try:
            drafters = self._load_all(drafter)
            return drafters, self.target.loaded or self.target.load(drafters.verify_width)
        except BaseException:
            self.target.close()
            raise

    def _load_all(self, drafter: DrafterConfig) -> Drafters:
        match drafter:
            case NoDrafter():
                return Drafters()
            case Automatic():
                return self._load_several(drafter.draft)
        built = load_one(drafter, self)
        name = "draft_head" if isinstance(built, ReadsFeatures) else drafter_name(drafter)
        is_adaptive = drafter.draft.adaptive if isinstance(drafter, Parallel) else drafter.adaptive
        return Drafters({name: built}, is_adaptive=is_adaptive)

    def load_model_or_head(self, drafter: DraftConfig, least_width: int = 1) -> Drafter:
        """The drafter; `least_width` are the nodes of other drafters' trees, for which the caches need room, too."""
        stored = find_head(open_source(drafter.model))
        if stored is None and drafter.model == self._config.target:
            stored = find_inner_head(self.checkpoint.source)
        if stored is None:
            if isinstance(drafter, DraftHead):
                raise CheckpointError(f"{drafter.model} is a whole model, not a draft head: set it as a DraftModel")
            return self._load_serial(drafter, self._open(drafter.model))
        return self._load_stored(
            stored, drafter if isinstance(drafter, DraftHead) else DraftHead.of(drafter), least_width
        )

    def _load_stored(self, stored: StoredHead, head: DraftHead, least_width: int) -> Drafter:
        """The drafter of a head."""
        alone = replace(self._config, **ALONE)
        stored.require_fit(self.spec, self._config.target)
        width = max(least_width, head.verify_width)
        loaded = self.target.load(width)
        return load_head(
            stored,
            head,
            self.policies.tree,
            loaded,
            Checkpoint.open(self.checkpoint.source, alone),
            capacity=self._max_length + rows_behind(width),
            max_length=self._max_length,
            cache_bytes=self._cache_bytes_of(stored.spec.body, "model"),
        )

    def _load_several(self, named: DraftConfig | None) -> Drafters:
        """The named draft, else the package's draft model for the target if there is one, and the drafters without one.

        A named draft with which the device plays whole rounds is alone, since it plays them with one drafter.
        """
        among: dict[str, Drafter] = {}
        others = {name: load_one(kind.config(), self) for name, kind in DRAFTERS.items() if kind.is_in_auto}
        if named is not None:
            width = max(other.verify_width for other in others.values())
            draft = self.load_model_or_head(named, width)
            among["draft_head" if isinstance(draft, ReadsFeatures) else "draft_model"] = draft
            alone = Drafters(among, is_adaptive=True)
            plan = alone.round_plan
            width = max(width, draft.verify_width)
            if plan is not None and self._backend.plays_rounds(self.target.load(width), plan):
                return alone
        elif (inner := find_inner_head(self.checkpoint.source)) is not None:
            width = max(other.verify_width for other in others.values())
            among["draft_head"] = self._load_stored(inner, DraftHead(model=self._config.target), width)
        elif (known := self._known_draft()) is not None:
            among["draft_model"] = self._load_serial(DraftModel(model=known.source.name), known)
        learnt = self._learnt.learnt
        built = Drafters(among | others, is_adaptive=True, known=learnt.speeds, saved_s=learnt.saved_s)
        self._learnt.restore(built)
        return built

    def _known_draft(self) -> Checkpoint | None:
        """The package's own draft for the target's vocabulary, if the target is large enough to benefit.

        The draft's tokens are not compared again, because reading its tokenizer takes a tenth of a second. The draft's
        map is still checked, because a target may have more or fewer ids than its tokenizer.
        """
        name = draft_of(Vocabulary.of(self._tokenizer))
        if name is None:
            return None
        draft = self._open_alone(name)
        vocabulary = draft.source.vocabulary_map()
        fault = None if vocabulary is None else self._judge_map(len(vocabulary.draft_ids), name)
        gains = is_small_enough(draft.spec.num_parameters, self.spec.num_parameters)
        return draft if gains and fault is None else None

    def _load_serial(self, drafter: DraftModel, draft: Checkpoint) -> Drafter:
        num_rows = rows_behind(drafter.verify_width) + serial_rows(drafter)
        runner = draft.load(
            exactness="fast",  # rounding in the draft changes no token
            capacity=self._max_length + num_rows,
            num_rows=num_rows,
            cache_bytes=self._cache_bytes_of(draft.spec, draft.cache_format),
            pace=draft.placement.draft,
            on_progress=self.on_progress,
        )
        return DraftModelDrafter(
            runner,
            drafter,
            self.policies.tree,
            target_vocab_size=self.spec.vocab_size,
            vocabulary=draft.source.vocabulary_map(),
        )

    def start_parallel(self, drafter: Parallel) -> Drafter:
        supply: WorkerSupply
        if drafter.address is None:
            model = self._model_for(drafter.draft)
            device = draft_device(drafter, self._config)
            require_devices(read_device(device).torch_device, drafter.ranks)
            cache = draft_cache(self._config.cache, device)
            placed = (*model, "--device", device, "--ranks", str(drafter.ranks), "--cache", cache)
            supply = LocalSupply(lambda descriptor, parent: self._command(placed, descriptor, parent))
        else:
            key = None if drafter.key_file is None else read_key(drafter.key_file)
            supply = RemoteSupply(Address.parse(drafter.address), key)
        return ParallelDrafter(
            supply,
            drafter.draft,
            self.policies.remote,
            self.policies.tree,
            target_vocab_size=self.spec.vocab_size,
            check=self._find_fault,
        )

    def _model_for(self, draft: DraftModel | LayerSkip) -> Sequence[str]:
        """The draft model's command-line flags for the process. Errors are raised here, where the user sees them."""
        match draft:
            case DraftModel():
                if find_head(open_source(draft.model)) is not None:
                    raise ConfigError(
                        f"{draft.model} is a draft head, which reads the target's features and so drafts in the "
                        "target's process: leave out --drafter parallel"
                    )
                checkpoint = self._open(draft.model)
                weights = self._config.weights if checkpoint.weight_format == "plain" else checkpoint.weight_format
                saved = ("--cache-bytes", str(self._cache_bytes_of(checkpoint.spec, checkpoint.cache_format)))
                return (draft.model, "--dtype", self._config.dtype, "--weights", weights, *saved)
            case LayerSkip():
                known = known_sets(draft, self.checkpoint)
                skipped = first_set(self.spec.num_layers, known)
                own = ("--dtype", self._config.dtype, "--weights", self._config.weights)
                held = own if draft.weights == "plain" else ("--weights", draft.weights)
                saved = ("--cache-bytes", str(self._config.cache_bytes))
                return (self._config.target, *held, *saved, "--skip", write_skips(skipped))

    def _command(self, model: Sequence[str], descriptor: int, parent: int) -> Sequence[str]:
        """The command line of a drafter's process under this engine."""
        cores = self._cores.draft
        num_threads = self._cores.draft_threads
        return [
            sys.executable, "-P", "-m", "forerun", "worker", *model,
            "--kernels", self._config.kernels,
            *(("--pack-in-memory",) if self._config.pack_in_memory else ()),
            "--max-length", str(self._max_length),
            "--threads", str(num_threads),
            *(("--cores", ",".join(map(str, cores))) if cores else ()),
            "--control", str(descriptor),
            "--parent", str(parent),
        ]  # fmt: skip

    def _cache_bytes_of(self, draft: ModelSpec, cache_format: CacheFormat) -> int:
        """Cache bytes in which a draft saves as many tokens as the target, in the same dtype."""
        itemsize = self.checkpoint.dtype.itemsize
        own = draft.kv_bytes_per_token(itemsize, cache_format)
        return self._config.cache_bytes * own // self.spec.kv_bytes_per_token(itemsize, self.checkpoint.cache_format)

    def _open_alone(self, name: str) -> Checkpoint:
        """Open a draft that is not divided among ranks, even if the target is."""
        return Checkpoint.open_draft(open_source(name), replace(self._config, **ALONE))

    def _open(self, name: str) -> Checkpoint:
        draft = self._open_alone(name)
        fault = self._judge(Vocabulary.of(draft.source.tokenizer()), name)
        if fault is not None:
            raise VocabularyError(fault)
        vocabulary = draft.source.vocabulary_map()
        fault = None if vocabulary is None else self._judge_map(len(vocabulary.draft_ids), name)
        if fault is not None:
            raise VocabularyError(fault)
        return draft

    def _judge(self, draft: Vocabulary, name: str) -> str | None:
        """The reason why a draft with this vocabulary does not fit, or None. The last result is cached, logged once."""
        marks = draft.to_bytes()
        if self._judged is None or self._judged[0] != marks:
            target = Vocabulary.of(self._tokenizer)
            self._judged = marks, find_mismatch(target, draft, target_name=self._config.target, draft_name=name)
        return self._judged[1]

    def _judge_map(self, num_ids: int, name: str) -> str | None:
        """The reason why a draft with a map of `num_ids` ids does not fit, or None."""
        return find_map_fault(num_ids, self.spec.vocab_size, target_name=self._config.target, draft_name=name)

    def _find_fault(self, hello: Hello) -> str | None:
        """The reason why a process cannot draft for this target, or None."""
        name = "the model of its process"
        fault = self._judge(Vocabulary.from_bytes(hello.vocabulary), name)
        if fault is None and hello.known:
            fault = self._judge_map(hello.vocab_size, name)
        if fault is not None:
            return fault
        if hello.max_length < self._max_length:
            return (
                f"it has room for {hello.max_length} tokens, but the target's texts may have {self._max_length}: start "
                f"it with --max-length {self._max_length}, or lower the target's max_length"
            )
        return None


def load_one(drafter: DrafterConfig, loading: Loading) -> Drafter:
    """A drafter, by the loader of its row in the table."""
    module, _, name = DRAFTERS[drafter_name(drafter)].loader.partition(":")
    built: Drafter = getattr(import_module(module), name)(drafter, loading)
    return built


def load_draft(config: DraftConfig, loading: DrafterLoader) -> Drafter:
    """A draft model, or a draft head that is named as one."""
    return loading.load_model_or_head(config)


def load_head(
    stored: StoredHead,
    drafter: DraftHead,
    policy: TreePolicy,
    target: Runner,
    checkpoint: Checkpoint,
    *,
    capacity: int,
    max_length: int,
    cache_bytes: int,
) -> Drafter:
    """The drafter of a head, see `load` of its kind's network.

    Args:
        checkpoint: the target's files.
        capacity: tokens of text and tree for which the head's cache needs room.
        max_length: tokens of a text.
        cache_bytes: limit on its saved texts.

    Raises:
        CheckpointError, VocabularyError: the head was not made for this target.
    """
    device = checkpoint.device
    given = HeadLoading(
        config=drafter,
        policy=policy,
        target=target,
        source=checkpoint.source,
        backend=checkpoint.choose_backend("fast").backend,
        dtype=checkpoint.dtype,
        device=device,
        pace=checkpoint.placement.draft,
        capacity=capacity,
        max_length=max_length,
        cache_bytes=cache_bytes,
        output_weight=lambda dtype: output_weight(checkpoint.source, dtype=dtype, device=device),
    )
    network = import_module(f"forerun.drafting.heads.{stored.kind.network}")
    built: Drafter = network.load(stored, given)
    return built


def start_parallel(config: Parallel, loading: DrafterLoader) -> Drafter:
    """A drafter in another process."""
    return loading.start_parallel(config)


def draft_device(drafter: Parallel, config: EngineConfig) -> str:
    """The first device of a drafter's process: the target's, or with several ranks the one after the target's last."""
    is_shared = config.target_ranks > 1 or drafter.ranks > 1
    if drafter.device is not None or not is_shared or read_device(config.device).is_paced:
        return drafter.device or config.device
    return device_of(config.device, config.target_ranks - config.remote_ranks)
