"""A tokenizer.json as the metadata that llama.cpp's converter makes of it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from forerun.checkpoints.gguf.header import GgufFile

NORMAL = 1
UNKNOWN = 2
CONTROL = 3
USER_DEFINED = 4
UNUSED = 5
BYTE = 6


def gguf_of(metadata: Mapping[str, Any]) -> GgufFile:
    """A file with such metadata and no tensors."""
    return GgufFile(path=Path("model.gguf"), metadata=metadata, tensors={})


def metadata_of(file: Path, *, pre: str | None, num_rows: int = 0, **more: object) -> dict[str, Any]:
    """The keys of a vocabulary, of byte-level BPE where `pre` names its splitting, else of sentencepiece's BPE.

    Args:
        num_rows: of the embedding, to which a vocabulary is filled up with unused tokens.
        more: other keys below tokenizer.ggml.
    """
    content = json.loads(file.read_text(encoding="utf-8"))
    model = content["model"]
    added = content["added_tokens"]
    ids = model["vocab"] | {token["content"]: token["id"] for token in added}
    of_id = {id_: token for token, id_ in ids.items()}
    size = max(num_rows, 1 + max(of_id))
    types = [NORMAL if id_ in of_id else UNUSED for id_ in range(size)]
    for token in added:
        types[token["id"]] = CONTROL if token["special"] else USER_DEFINED
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    values: dict[str, Any] = {
        "tokens": tuple(of_id.get(id_, f"[PAD{id_}]") for id_ in range(size)),
        "model": "llama" if pre is None else "gpt2",
    }
    values |= {"scores": scores_of(values["tokens"], merges)} if pre is None else {"pre": pre, "merges": tuple(merges)}
    if pre is None:
        types = [BYTE if token.startswith("<0x") else kind for token, kind in zip(values["tokens"], types, strict=True)]
    values |= {"token_type": tuple(types)} | more
    return {f"tokenizer.ggml.{key}": value for key, value in values.items()}


def scores_of(tokens: tuple[str, ...], merges: list[str]) -> tuple[float, ...]:
    """Scores that fall with the place of the first merge into a token; runs of spaces have Llama 2's lowest."""
    places: dict[str, int] = {}
    for place, merge in enumerate(merges):
        places.setdefault(merge.replace(" ", ""), place)
    return tuple(-1e9 if set(token) == {"▁"} and len(token) > 1 else -float(places.get(token, 0)) for token in tokens)
