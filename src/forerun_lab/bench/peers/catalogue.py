"""The peers by name: the packages each needs, its settings, and how to open it."""

import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Literal

from forerun.core.errors import ConfigError
from forerun.core.optional_packages import install_command
from forerun.core.pace import read_device
from forerun_lab.bench.peers.messages import DTYPES, PeerPlan
from forerun_lab.bench.peers.process import ProcessPeer
from forerun_lab.bench.peers.server_peer import find_program_fault
from forerun_lab.bench.records.answers import Contestant

COMPILERS: Final = ("c++", "g++", "clang++")
SERVER_DTYPES: Final = DTYPES[:3]
RENAMED: Final = {  # names of earlier versions, which measured llama.cpp through llama-cpp-python
    "llama_cpp": "llama_server",
    "llama_cpp_draft": "llama_server_draft",
    "llama_cpp_lookup": "llama_server_lookup",
}
Settings = Mapping[str, Any]
Kind = Literal["transformers", "llama_server", "ik_llama_server", "vllm", "sglang", "openai_server"]


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
    "llama_server": Peer(kind="llama_server"),
    "llama_server_draft": Peer(
        kind="llama_server",
        mode="draft",
        needs_draft=True,
        grid=(
            {},
            {"spec_draft_n_max": 2},
            {"spec_draft_n_max": 4},
            {"spec_draft_n_max": 4, "spec_draft_p_min": 0.5},
            {"spec_draft_n_max": 8, "spec_draft_p_min": 0.5},
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
    "llama_server_default": Peer(kind="llama_server", mode="default"),
    "ik_llama_server": Peer(kind="ik_llama_server"),
    "ik_llama_server_draft": Peer(
        kind="ik_llama_server",
        mode="ik_draft",
        needs_draft=True,
        grid=(
            {},
            {"spec_type": "draft:n_max=2"},
            {"spec_type": "draft:n_max=4"},
            {"spec_type": "draft:n_max=4,p_min=0.5"},
            {"spec_type": "draft:n_max=8,p_min=0.5"},
            {"spec_type": "draft:n_max=8,p_min=0.75"},
        ),
    ),
    "ik_llama_server_lookup": Peer(
        kind="ik_llama_server",
        mode="lookup",
        grid=(
            {},
            {"spec_type": "ngram-simple:ngram_size_n=4,ngram_size_m=8"},
            {"spec_type": "ngram-map-k:ngram_size_n=3,ngram_size_m=6"},
            {"spec_type": "ngram-cache"},
            {"spec_type": "ngram-mod:ngram_size_n=4"},
            {"spec_type": "suffix"},
        ),
    ),
    "ik_llama_server_suffix": Peer(kind="ik_llama_server", mode="suffix"),
    "vllm": Peer(kind="vllm"),
    "sglang": Peer(kind="sglang"),
    "openai_server": Peer(kind="openai_server"),
}


def find_peer(name: str) -> Peer:
    """The peer of this name.

    Raises:
        ConfigError: there is no such peer.
    """
    if name in RENAMED:
        raise ConfigError(f"{name} is measured through its server now: name {RENAMED[name]}, with --llama-server FILE")
    if name not in PEERS:
        raise ConfigError(f"there is no peer {name!r}: choose from {', '.join(PEERS)}")
    return PEERS[name]


def find_absence(name: str, plan: PeerPlan) -> str | None:
    """The reason why a peer cannot take part, or None. Nothing is loaded to find out."""
    peer = find_peer(name)
    if peer.kind == "transformers" and find_spec("transformers") is None:
        return f"transformers is not installed: {install_command('transformers')}"
    if read_device(plan.device).is_paced:
        return "a paced device slows this engine only"
    if peer.needs_draft and plan.draft is None:
        return "no draft model given"
    if name in plan.urls:
        return None
    paths = [Path(path) for path in (plan.target, plan.draft if peer.needs_draft else None) if path is not None]
    folder = next((path for path in paths if not path.is_file()), None)
    if peer.kind == "transformers" and any(path.is_file() for path in paths):
        return "it does not compute with GGUF files: measure it with the same model's safetensors"
    if peer.kind in ("llama_server", "ik_llama_server") and folder is not None:
        return f"it reads only GGUF files, and {folder} is not one: give --target and --draft a GGUF file"
    if plan.weight_format != "plain":
        if folder is None:
            return f"a GGUF file is not rounded again to {plan.weight_format}"
        return f"it loads no {plan.weight_format} weights here, only {', '.join(DTYPES)}"
    if peer.kind != "transformers":
        if plan.dtype not in SERVER_DTYPES:
            return f"servers do not compute in {plan.dtype}, only in {', '.join(SERVER_DTYPES)}"
        return find_program_fault(plan, name, peer.kind)
    if peer.mode == "static_compile" and plan.device == "cpu" and not any(map(shutil.which, COMPILERS)):
        return "no C++ compiler on this machine"
    return None


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
    module = "transformers_peer" if peer.kind == "transformers" else "server_peer"
    command = (sys.executable, "-P", "-m", f"forerun_lab.bench.peers.{module}", peer.kind)
    return ProcessPeer(name, command, replace(plan, name=name, mode=peer.mode, settings=settings))
