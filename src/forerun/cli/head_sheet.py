"""The lines that `inspect` and `check` print about a draft head."""

from pathlib import Path
from typing import Any

from forerun.cli.model_sheet import count, file_rows
from forerun.core.errors import CheckpointError, VocabularyError
from forerun.core.model_spec import ModelSpec
from forerun.drafting.heads.kind import StoredHead


def head_rows(head: StoredHead, files: tuple[Path, ...]) -> list[tuple[str, str]]:
    """Labels and values of a head."""
    spec = head.spec
    body = spec.body
    has_own = {"embed_tokens.weight": "embedding", "lm_head.weight": "output"}
    own = [word for name, word in has_own.items() if name in head.tensors]
    rows = [
        ("draft head", f"{spec.label}, {head.name}"),
        ("made for", head.verifier or f"a target of hidden size {spec.target_hidden_size}"),
        ("parameters", f"{count(head.num_parameters)}, own: {' and '.join(own) or 'neither embedding nor output'}"),
        ("layers", f"{body.num_layers} of hidden size {body.hidden_size}, {body.intermediate_size} in the MLP"),
        ("reads", spec.reads),
        ("tokens drafted", str(body.vocab_size)),
        *spec.own_rows,
    ]
    return rows + file_rows([(path.name, path.stat().st_size) for path in files])


def head_to_dict(head: StoredHead) -> dict[str, Any]:
    """The same for JSON."""
    spec = head.spec
    return {
        "name": head.name,
        "head": spec.label,
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
