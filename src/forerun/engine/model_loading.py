"""Load a stored model into a runner: read the weights and pack them."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from math import prod

import torch

from forerun.backends.backend import KeptWeights
from forerun.backends.choose import BackendChoice, choose_backend
from forerun.backends.dtypes import Conditions, compute_dtype, runs_native
from forerun.checkpoints.prepared.folder import PreparedFolder
from forerun.checkpoints.safetensors.header import FLOAT_BYTES
from forerun.checkpoints.source import CheckpointSource, Reading
from forerun.core.config import EngineConfig, Exactness, WeightsName
from forerun.core.errors import CheckpointError, ConfigError
from forerun.core.mechanisms import mechanisms_of
from forerun.core.model_spec import CacheFormat, ModelSpec, WeightFormat
from forerun.core.pace import Pace, Placement, read_device
from forerun.core.paths import cache_folder
from forerun.core.sublayers import NOTHING, SkipSet
from forerun.drafting.heads.stored import require_model
from forerun.model.quantise import weight_bytes
from forerun.model.runner import Runner
from forerun.model.weights import WeightSource
from forerun.text.tokenizer import Tokenizer

Progress = Callable[[str, int, int], None]  # name of the model, bytes read, total bytes
DEFAULT_MAX_LENGTH = 8192
SUPPORTED = ("cpu", "cuda")  # kinds of device
PLANNED = ("mps", "xpu")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A model whose config has been read and checked, but not its weights; and how it will be loaded.

    Args:
        dtype: of activations, cache and all weights that are not quantised.
        weight_format: format of the linear layers' weights.
        placement: the device, and its paces.
        conditions: the conditions besides device and dtype that determine the kernels.
        cache_format: of keys and values.
        packs_in_memory: whether a file's codes are packed at every start, and not saved.
    """

    source: CheckpointSource
    spec: ModelSpec
    dtype: torch.dtype
    weight_format: WeightFormat
    placement: Placement
    conditions: Conditions
    cache_format: CacheFormat = "model"
    packs_in_memory: bool = False

    @classmethod
    def open(cls, source: CheckpointSource, config: EngineConfig) -> "Checkpoint":
        """Read everything but the weights.

        Raises:
            CheckpointError: the model is not supported, or it is a draft head.
            ConfigError: the device does not exist.
        """
        placement = read_device(config.device)
        weight_format = weight_format_of(config.weights)
        find_device(placement.torch_device)
        require_model(source)
        spec = source.spec()  # first, so that an unsupported config is refused before the weights are read
        spec = spec.for_length(longest_text(config, spec))
        conditions = conditions_of(config, spec)
        name = compute_dtype(
            config.dtype,
            stored=source.stored_dtype(),
            is_quantised=weight_format != "plain",
            device=placement.torch_device,
            conditions=conditions,
        )
        return cls(
            source=source,
            spec=spec,
            dtype=getattr(torch, name),
            weight_format=weight_format,
            placement=placement,
            conditions=conditions,
            cache_format=config.cache,
            packs_in_memory=config.pack_in_memory,
        )

    @classmethod
    def open_draft(cls, source: CheckpointSource, config: EngineConfig) -> "Checkpoint":
        """Open a draft model. The native CPU kernels hold it in 8 bits, or multiply a file's codes with 8-bit inputs,
        because its rounding changes no token. On a CPU its cache has the target's format.

        In 8 bits a pass of a 12M draft takes 0.13 to 0.26 ms instead of 0.21 to 0.33 (1 to 8 rows, two Zen 5 cores);
        4 bits are not faster from 3 rows on.
        """
        config = replace(config, inputs="int8", cache=draft_cache(config.cache, config.device))
        plain = cls.open(source, config)
        is_prepared = isinstance(source, PreparedFolder)  # already in its final format
        is_plain = config.weights == "stored" and not (plain.has_codes or is_prepared)
        if is_plain and plain.runs_native:
            return cls.open(source, replace(config, weights="int8"))
        return plain

    @property
    def device(self) -> str:
        """The torch device that the model runs on."""
        return self.placement.torch_device

    @property
    def dtype_name(self) -> str:
        """The name shown to users: the format of quantised weights, else the dtype. For a file's own codes, their
        types, with the most bytes first, and the dtype that they are multiplied with."""
        if self.weight_format != "plain":
            return self.weight_format
        name = str(self.dtype).removeprefix("torch.")
        stored = self.source.stored_formats()
        codes = sorted(stored.keys() - FLOAT_BYTES.keys(), key=lambda kind: -stored[kind])
        return f"{'+'.join(codes)} ({name})" if self.has_codes else name

    @property
    def has_codes(self) -> bool:
        """Whether the weights are kept as the file's own codes."""
        return self.weight_format == "plain" and not self.source.stored_formats().keys() <= FLOAT_BYTES.keys()

    def weight_bytes(self, shape: tuple[int, int]) -> float:
        """Bytes of a linear layer's weight; for a file's own codes, by the average size of all its weights."""
        if not self.has_codes:
            return weight_bytes(shape, self.weight_format, self.dtype.itemsize)
        return prod(shape) * sum(self.source.stored_formats().values()) / self.spec.num_parameters

    def choose_backend(self, exactness: Exactness) -> BackendChoice:
        """Choose the backend of the model.

        Raises:
            ConfigError: the requested kernels cannot run.
        """
        spec = self.spec
        layers = [spec.of_layer(layer) for layer in range(spec.num_layers)]
        return choose_backend(
            exactness,
            dtype=self.dtype,
            device=self.device,
            head_dim=spec.head_dim,
            group=spec.num_heads // spec.num_kv_heads,
            other_heads={(own.head_dim, own.num_heads // own.num_kv_heads) for own in layers},
            conditions=self.conditions,
        )

    @property
    def runs_native(self) -> bool:
        """Whether the native C++ kernels run the model."""
        name = str(self.dtype).removeprefix("torch.")
        return runs_native(name, self.device, self.conditions)

    def weights(self, on_progress: Progress | None = None) -> WeightSource:
        """All weights, on the model's device."""
        return self.source.weights(**self.reading(on_progress))

    def reading(self, on_progress: Progress | None = None) -> Reading:
        """The keyword arguments for reading the weights."""

        def report(done: int, total: int) -> None:
            if on_progress is not None:
                on_progress(self.source.name, done, total)

        return Reading(
            dtype=self.dtype,
            weight_format=self.weight_format,
            device=self.device,
            on_progress=report,
        )

    def load(
        self,
        *,
        exactness: Exactness,
        capacity: int,
        cache_bytes: int = 0,
        pace: Pace | None = None,
        on_progress: Progress | None = None,
        num_rows: int = 0,
        unused: SkipSet = NOTHING,
    ) -> Runner:
        """Read the weights and build a runner, without `unused` sublayers.

        Args:
            capacity: tokens that its cache has room for.
            num_rows: how many of them are rows behind a text.
            cache_bytes: limit on its saved texts.
        """
        backend = self.choose_backend(exactness).backend
        if self.has_codes and not self.packs_in_memory:
            backend = backend.keeping(self._kept(is_whole=not unused))
        return Runner(
            self.spec,
            self.weights(on_progress),
            backend=backend,
            capacity=capacity,
            num_rows=num_rows,
            dtype=self.dtype,
            device=self.device,
            pace=pace,
            unused=unused,
            cache_format=self.cache_format,
            cache_bytes=cache_bytes,
            message_ends=() if self.spec.mixer is None else frozenset(self.source.stop_ids()),
        )

    def about_files(self) -> str:
        """What tells these files from all others."""
        files = [(stat.st_size, stat.st_mtime_ns) for stat in (path.stat() for path in self.source.files())]
        return f"model {self.source.identity()}, files of {files}"

    def _kept(self, *, is_whole: bool) -> KeptWeights:
        """The cache of packed codes for exactly these files, because packed weights are not read from them again."""
        return KeptWeights(
            folder=cache_folder() / "packed",
            name=self.source.name,
            about=self.about_files(),
            num_bytes=sum(self.source.stored_formats().values()),
            is_whole=is_whole,
        )


def draft_cache(target: CacheFormat, device: str) -> CacheFormat:
    """The format of a draft model's cache on this device: the target's, which a GPU's kernels may not know."""
    return target if torch.device(read_device(device).torch_device).type == "cpu" else "model"


def find_device(name: str) -> torch.device:
    """An available device.

    Raises:
        ConfigError: it is unavailable or not supported.
    """
    kind = name.partition(":")[0]
    try:
        device = torch.device(name) if kind in SUPPORTED else None
    except RuntimeError:
        device = None
    if device is None:
        yet = " yet" if kind in PLANNED else ""
        raise ConfigError(f"forerun does not run on device {name!r}{yet}: write cpu, cuda or cuda:1")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"torch sees no GPU for device {name!r}: choose cpu, or install a torch built with CUDA")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(f"there is no {name}: torch sees {torch.cuda.device_count()} GPUs, numbered from 0")
    return device


@cache
def tell_once(message: str) -> None:
    """Log a warning only the first time."""
    logger.warning("%s", message)


@cache
def hint_at_gpu(device: str) -> None:
    """Log once that a GPU is idle while the model runs on the CPU, the default device."""
    if device == "cpu" and torch.cuda.is_available():
        logger.warning('the model runs on the CPU, but this machine has a GPU: device "cuda" (--device cuda) uses it')


def longest_text(config: EngineConfig, spec: ModelSpec) -> int:
    """The most tokens of a text of this model."""
    return min(spec.max_positions, config.max_length or DEFAULT_MAX_LENGTH)


def conditions_of(config: EngineConfig, spec: ModelSpec) -> Conditions:
    """The conditions besides device and dtype that determine the kernels."""
    return Conditions(
        kernels=config.kernels,
        is_shared=config.target_ranks > 1,
        is_apart=config.remote_ranks > 0,
        inputs=config.inputs,
        cache=config.cache,
        needed=mechanisms_of(spec, longest_text(config, spec)),
    )


def require_codes(checkpoint: Checkpoint) -> None:
    """Raise ConfigError if 8-bit inputs are set but no weights would be multiplied with them."""
    if checkpoint.conditions.inputs == "int16":
        return
    name = checkpoint.source.name
    if not checkpoint.has_codes:
        raise ConfigError(
            f'inputs "int8" rounds the inputs that a GGUF file\'s codes are multiplied with, but the weights of '
            f"{name} are {checkpoint.dtype_name}: leave it out, or name a GGUF file such as Q4_K_M"
        )
    if not checkpoint.runs_native:
        raise ConfigError(
            f'inputs "int8" is for the CPU\'s native kernels, which do not run {name} here: leave it out, or '
            "install the kernels (see docs/installing.md)"
        )


def require_rows(tokenizer: Tokenizer, spec: ModelSpec, name: str) -> None:
    """Refuse a tokenizer that writes tokens which the embedding lacks.

    Added tokens beyond it, such as those of pictures, are refused in the requests that use them.

    Raises:
        CheckpointError: names both numbers.
    """
    if tokenizer.num_ordinary > spec.vocab_size:
        raise CheckpointError(
            f"the tokenizer of {name} has {tokenizer.num_ordinary} tokens, but its embedding has {spec.vocab_size} "
            "rows: check that tokenizer.json and weights belong together"
        )


def weight_format_of(name: WeightsName) -> WeightFormat:
    """The weight format of linear layers."""
    return "plain" if name == "stored" else name


def resolve_max_length(config: EngineConfig, spec: ModelSpec) -> int:
    """Limit on the tokens of prompt and answer together; a warning says if the configured one exceeds the model's."""
    if config.max_length is not None and config.max_length > spec.max_positions:
        tell_once(
            f"max_length {config.max_length} is more than the {spec.max_positions} positions of {config.target}: texts "
            f"have at most {spec.max_positions} tokens"
        )
    return longest_text(config, spec)


class LazyTarget:
    """Loads the target once.

    Args:
        load: called with the number of cache rows needed after the text.
    """

    def __init__(self, load: Callable[[int], Runner]) -> None:
        self._load = load
        self._verify_width = 0
        self._loaded: Runner | None = None

    def load(self, verify_width: int) -> Runner:
        """The target, with room for trees of this many nodes; a later call may not ask for more."""
        if self._loaded is None:
            self._loaded = self._load(rows_behind(verify_width))
            self._verify_width = verify_width
        assert verify_width <= self._verify_width, f"{verify_width} nodes, room for {self._verify_width}"
        return self._loaded

    @property
    def loaded(self) -> Runner | None:
        """The target, if it is loaded."""
        return self._loaded

    def load_rows(self, num_rows: int) -> Runner:
        """The target, with this many cache rows after the text."""
        assert self._loaded is None, "a drafter that needs other rows has loaded it"
        self._loaded = self._load(num_rows)
        return self._loaded

    def close(self) -> None:
        """End the other ranks of a loaded target."""
        if self._loaded is not None:
            self._loaded.close()


def rows_behind(verify_width: int) -> int:
    """Cache rows after the text: for a round, for another round launched before the first has ended, and a scratch row
    that is never read."""
    return 2 * verify_width + 1
