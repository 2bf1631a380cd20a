"""The messages to a peer's process: the models and settings, then one request after the other."""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final

from forerun.core.config import SamplingParams
from forerun.core.errors import ConfigError, ContextOverflowError, ForerunError, require
from forerun.core.model_spec import WeightFormat

DTYPES: Final = ("float32", "bfloat16", "float16", "float64")
FILTERS: Final = ("temperature", "top_k", "top_p", "min_p")
UNDERSTOOD: Final = frozenset((*FILTERS, "max_new_tokens", "ignore_eos", "seed"))
NUM_SEEDS: Final = 2**32 - 1  # llama.cpp's seeds have 32 bits; with all bits set it chooses a random seed


class PeerError(ForerunError):
    """A peer could not be started, died, or gave no usable answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerPlan:
    """The settings that all peers share with our engine, so that they do the same work. It is the first message to a
    peer's process.

    Args:
        target, draft: checkpoint folders or GGUF files.
        dtype: of the cache, and of weights that are not quantised; "auto" must be resolved before.
        num_threads: CPU threads.
        max_length: most tokens of prompt and answer together, and the length of a static cache.
        weight_format: of the linear layers' weights.
        device: a torch device.
        urls: addresses of running servers, by peer.
        commands: command lines that start servers, by peer.
        name: of the peer; this and the next fields are set for each peer.
        mode: the peer's decoding mode.
        settings: the tunable settings, by the peer's own names.
    """

    target: str
    dtype: str
    num_threads: int
    max_length: int
    weight_format: WeightFormat = "plain"
    draft: str | None = None
    device: str = "cpu"
    urls: Mapping[str, str] = field(default_factory=dict)
    commands: Mapping[str, str] = field(default_factory=dict)
    name: str = ""
    mode: str = "plain"
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require(self.dtype in DTYPES, f"dtype {self.dtype!r} of the peers must be one of {', '.join(DTYPES)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerRequest:
    """A prompt and its sampling parameters. Filters apply in our order: temperature, top_k, top_p, min_p."""

    prompt_ids: tuple[int, ...]
    max_new_tokens: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int
    ignore_eos: bool

    @classmethod
    def of(cls, prompt_ids: Sequence[int], params: SamplingParams, *, max_length: int) -> "PeerRequest":
        """The request that makes a peer do the same work as our engine does with these parameters.

        Raises:
            ConfigError: a parameter is set that not every peer has, or the prompt is empty.
            ContextOverflowError: prompt and answer do not fit.
        """
        strange = [
            item.name
            for item in fields(params)
            if item.name not in UNDERSTOOD and getattr(params, item.name) != getattr(SamplingParams(), item.name)
        ]
        if strange:
            raise ConfigError(f"peers do not support {', '.join(strange)}: leave it at its default with --peers")
        if not prompt_ids or params.max_new_tokens is None:
            raise ConfigError("a peer needs a prompt of at least one token and max_new_tokens: give both")
        if len(prompt_ids) + params.max_new_tokens > max_length:
            raise ContextOverflowError(
                f"a prompt of {len(prompt_ids)} tokens and max_new_tokens {params.max_new_tokens} exceed the context "
                f"of {max_length}: raise max_length"
            )
        seed = secrets.randbits(32) if params.seed is None else params.seed
        return cls(
            prompt_ids=tuple(prompt_ids),
            max_new_tokens=params.max_new_tokens,
            seed=seed % NUM_SEEDS,
            ignore_eos=params.ignore_eos,
            **{name: getattr(params, name) for name in FILTERS},
        )
