"""The peers by name: the packages each needs, its settings, and how to open it."""

import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Literal

from forerun.bench.peers.endpoint_peer import EndpointPeer
from forerun.bench.peers.messages import DTYPES, PeerPlan
from forerun.bench.peers.process import ProcessPeer
from forerun.bench.records.answers import Contestant
from forerun.core.errors import ConfigError
from forerun.core.pace import read_device

GGUF_DTYPES: Final = DTYPES[:3]
COMPILERS: Final = ("c++", "g++", "clang++")
Settings = Mapping[str, Any]
Kind = Literal["transformers", "llama_cpp", "llama_server", "endpoint"]
PACKAGES: Final[Mapping[Kind, tuple[str, ...]]] = {
    "transformers": ("transformers",),
    "llama_cpp": ("llama_cpp", "gguf"),
    "llama_server": ("gguf",),
    "endpoint": (),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """One peer.

    Args:
        kind: the adapter that runs it.
        mode: the engine's decoding mode.
        needs_draft: whether it needs a draft model.
        grid: settings to tune over, the defaults first; no other names may be set.
    """

    kind: Kind
    mode: str = "plain"
    needs_draft: bool = False
    grid: tuple[Settings, ...] = ({},)

    @property
    def settings(self) -> frozenset[str]:
        return frozenset(name for entry in self.grid for name in entry)


PEERS: Final[Mapping[str, Peer]] = {
    "transformers": Peer(kind="transformers"),
    "transformers_static": Peer(kind="transformers", mode="static"),
    "transformers_static_compile": Peer(kind="transformers", mode="static_compile"),
    "transformers_assisted": Peer(
        kind="transformers",
        mode="assisted",
        needs_draft=True,
        grid=(
            {},
            {"num_assistant_tokens": 3, "assistant_confidence_threshold": 0.0},
            {"num_assistant_tokens": 5, "assistant_confidence_threshold": 0.0},
            {"num_assistant_tokens": 5},
            {"num_assistant_tokens": 5, "num_assistant_tokens_schedule": "heuristic"},
            {"num_assistant_tokens": 10, "assistant_confidence_threshold": 0.6},
        ),
    ),
    "transformers_lookup": Peer(
        kind="transformers",
        mode="lookup",
        grid=(
            {},
            {"prompt_lookup_num_tokens": 4},
            {"prompt_lookup_num_tokens": 7},
            {"prompt_lookup_num_tokens": 7, "max_matching_ngram_size": 3},
            {"prompt_lookup_num_tokens": 10, "max_matching_ngram_size": 3},
            {"prompt_lookup_num_tokens": 15, "max_matching_ngram_size": 4},
        ),
    ),
    "llama_cpp": Peer(kind="llama_cpp", grid=({}, {"flash_attention": True})),
    "llama_cpp_draft": Peer(
        kind="llama_cpp",
        mode="draft",
        needs_draft=True,
        grid=(
            {},
            {"num_pred_tokens": 2},
            {"num_pred_tokens": 2, "draft_weights": "int8", "flash_attention": True},
            {"num_pred_tokens": 4, "draft_weights": "int8", "flash_attention": True},
            {"num_pred_tokens": 6, "p_min": 0.3},
            {"num_pred_tokens": 12, "p_min": 0.6, "draft_weights": "int8"},
        ),
    ),
    "llama_cpp_lookup": Peer(
        kind="llama_cpp",
        mode="lookup",
        grid=(
            {},
            {"num_pred_tokens": 2, "flash_attention": True},
            {"num_pred_tokens": 4, "flash_attention": True},
            {"num_pred_tokens": 4, "max_ngram_size": 3},
            {"num_pred_tokens": 7, "max_ngram_size": 3},
            {"num_pred_tokens": 10, "max_ngram_size": 4},
        ),
    ),
    "llama_server": Peer(kind="llama_server"),
    "llama_server_draft": Peer(
        kind="llama_server",
        mode="draft",
        needs_draft=True,
        grid=(
            {},
            {"spec_draft_n_max": 2},
            {"spec_draft_n_max": 2, "draft_weights": "int8"},
            {"spec_draft_n_max": 4, "draft_weights": "int8"},
            {"spec_draft_n_max": 8, "spec_draft_p_min": 0.5, "draft_weights": "int8"},
            {"spec_type": "ngram-simple,draft-simple", "spec_ngram_simple_size_n": 4, "spec_ngram_simple_size_m": 8},
        ),
    ),
    "llama_server_lookup": Peer(
        kind="llama_server",
        mode="lookup",
        grid=(
            {},
            {"spec_ngram_simple_size_n": 3, "spec_ngram_simple_size_m": 4},
            {"spec_ngram_simple_size_n": 4, "spec_ngram_simple_size_m": 8},
            {"spec_type": "ngram-map-k", "spec_ngram_map_k_size_n": 3, "spec_ngram_map_k_size_m": 6},
            {"spec_type": "ngram-cache"},
            {"spec_type": "ngram-mod", "spec_ngram_mod_n_match": 4, "spec_ngram_mod_n_min": 2},
        ),
    ),
    "vllm": Peer(kind="endpoint"),
    "sglang": Peer(kind="endpoint"),
}


def find_peer(name: str) -> Peer:
    """The peer of this name.

    Raises:
        ConfigError: there is no such peer.
    """
    if name not in PEERS:
        raise ConfigError(f"there is no peer {name!r}: choose from {', '.join(PEERS)}")
    return PEERS[name]


def find_absence(name: str, plan: PeerPlan) -> str | None:
    """The reason why a peer cannot take part, or None. Nothing is loaded to find out."""
    peer = find_peer(name)
    missing = [package for package in PACKAGES[peer.kind] if find_spec(package) is None]
    if missing:
        return f"{' and '.join(missing)} not installed"
    if read_device(plan.device).is_paced:
        return "a paced device slows this engine only"
    if peer.needs_draft and plan.draft is None:
        return "no draft model given"
    if peer.kind == "endpoint" and name not in plan.urls:
        return "no URL given"
    has_file = any(path is not None and Path(path).is_file() for path in (plan.target, plan.draft))
    if peer.kind == "transformers" and has_file:
        return "it computes no codes of GGUF files: measure it beside the same model's safetensors"
    if has_file and peer.kind != "endpoint" and plan.weight_format != "plain":
        return f"a GGUF file is not rounded again to {plan.weight_format}"
    if peer.kind == "transformers" and plan.weight_format != "plain":
        return f"it loads no {plan.weight_format} weights here, only {', '.join(DTYPES)}"
    if peer.kind in ("llama_cpp", "llama_server") and plan.dtype not in GGUF_DTYPES:
        return f"llama.cpp has no {plan.dtype}"
    if peer.kind == "llama_server":
        return find_binary_fault(plan.llama_server)
    if peer.mode == "static_compile" and plan.device == "cpu" and not any(map(shutil.which, COMPILERS)):
        return "no C++ compiler on this machine"
    return None


def find_binary_fault(path: str | None) -> str | None:
    """The reason why the server cannot be started, or None."""
    if path is None:
        return "no llama-server binary given"
    return None if shutil.which(path) else f"{path} is not a program"


def open_peer(name: str, plan: PeerPlan, settings: Settings) -> Contestant:
    """Open a peer, ready to generate.

    Raises:
        ConfigError: there is no such peer or setting.
        PeerError: the peer does not start.
    """
    peer = find_peer(name)
    unknown = sorted(set(settings) - peer.settings)
    if unknown:
        known = ", ".join(sorted(peer.settings)) or "none"
        raise ConfigError(f"{name} has no setting {', '.join(unknown)}: it has {known}")
    absence = find_absence(name, plan)
    if absence is not None:
        raise ConfigError(f"{name} cannot take part: {absence}")
    if peer.kind == "endpoint":
        return EndpointPeer(name, plan.urls[name], max_length=plan.max_length)
    command = (sys.executable, "-P", "-m", f"forerun.bench.peers.{peer.kind}_peer")
    return ProcessPeer(name, command, replace(plan, mode=peer.mode, settings=settings, urls={}))
