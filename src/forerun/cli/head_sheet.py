"""The lines that `inspect` and `check` print about a draft head."""

from pathlib import Path
from typing import Any

from forerun.checkpoints.heads.stored import StoredHead
from forerun.cli.sheet import count, file_rows
from forerun.core.errors import CheckpointError, VocabularyError
from forerun.core.head_spec import AssistantSpec, DFlashSpec, EagleSpec, HeadSpec
from forerun.core.model_spec import ModelSpec


def kind_of(spec: HeadSpec) -> str:
    """The name of a head's kind."""
    if isinstance(spec, EagleSpec):
        return "EAGLE-3"
    if isinstance(spec, AssistantSpec):
        return "Gemma 4 assistant"
    return "DFlash 2" if spec.pair_rank else "DSpark" if spec.markov_rank else "DFlash"


def head_rows(head: StoredHead, files: tuple[Path, ...]) -> list[tuple[str, str]]:
    """Labels and values of a head."""
    spec = head.spec
    is_usual = isinstance(spec, EagleSpec) and spec.layer_ids is None
    ids = "1, L // 2 - 1 and L - 4 of L layers" if is_usual else f"{list(spec.taps(0))}"
    reads = f"{spec.num_taps} features a token, after the target's layers {ids}, counted from 0"
    if isinstance(spec, AssistantSpec):
        reads = "the target's keys and values, and its last hidden state"
    body = spec.body
    has_own = {"embed_tokens.weight": "embedding", "lm_head.weight": "output"}
    own = [word for name, word in has_own.items() if name in head.tensors]
    rows = [
        ("draft head", f"{kind_of(spec)}, {head.name}"),
        ("made for", head.verifier or f"a target of hidden size {spec.target_hidden_size}"),
        ("parameters", f"{count(head.num_parameters)}, own: {' and '.join(own) or 'neither embedding nor output'}"),
        ("layers", f"{body.num_layers} of hidden size {body.hidden_size}, {body.intermediate_size} in the MLP"),
        ("reads", reads),
        ("tokens drafted", str(body.vocab_size)),
    ]
    if isinstance(spec, DFlashSpec):
        rows.append(("drafts", f"{spec.num_drafted} tokens in one pass"))
    return rows + file_rows([(path.name, path.stat().st_size) for path in files])


def head_to_dict(head: StoredHead) -> dict[str, Any]:
    """The same for JSON."""
    spec = head.spec
    return {
        "name": head.name,
        "head": kind_of(spec),
        "verifier": head.verifier or None,
        "num_parameters": head.num_parameters,
        "target_hidden_size": spec.target_hidden_size,
        "num_features": spec.num_taps,
        "num_drafted_ids": spec.body.vocab_size,
    }


def head_fault(head: StoredHead, target: ModelSpec, target_name: str) -> str | None:
    """Why a head cannot draft for a target; None if it can."""
    try:
        head.require_fit(target, target_name)
    except (CheckpointError, VocabularyError) as error:
        return str(error)
    return None
