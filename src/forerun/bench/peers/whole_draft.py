"""Write a draft with a partial vocabulary as one with all of the target's tokens, for engines without vocabulary maps.

Legend: V the target's vocabulary, W the draft's, H the hidden size, T tokens of texts.
"""

import json
from pathlib import Path
from typing import Final

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from forerun.bench.peers.gguf_cache import identity
from forerun.checkpoints.huggingface.config import CONFIG_NAME
from forerun.checkpoints.huggingface.names import EMBEDDING_NAME, HEAD_NAME
from forerun.checkpoints.huggingface.stored_tensors import SINGLE_NAME
from forerun.checkpoints.open import open_source
from forerun.checkpoints.source import CheckpointSource
from forerun.core.config import EngineConfig
from forerun.core.output_file import replacing, write_whole
from forerun.engine.model_loading import Checkpoint

NUM_TEXTS: Final = 16  # random texts that the losing row is fitted to
NUM_TOKENS: Final = 128  # of each text; in all a few times the hidden size
LOSING: Final = -100.0  # logit of a token that the draft lacks; the likeliest token's logit is nearly always above 0
RIDGE: Final = 1e-3  # of the mean square of a hidden value


def whole_draft(name: str, cache: Path) -> Path:
    """The draft itself if it has all tokens, else a folder in `cache` with an equivalent draft that has all of them.

    A token that the draft lacks gets the embedding of the token that the draft reads it as, and a head row whose logit
    is always low, so it is never proposed. The head then has all tokens, and its cost grows accordingly.

    Raises:
        CheckpointError: the draft cannot be read.
    """
    source = open_source(name)
    vocabulary = source.vocabulary_map()
    if vocabulary is None:
        return source.path
    folder = cache / f"{source.path.name}-whole-{identity(source.path)}"
    if (folder / CONFIG_NAME).exists():
        return folder
    weights = load_file(source.path / SINGLE_NAME)
    embedding_WH, draft_ids_V = weights[EMBEDDING_NAME], vocabulary.draft_ids.long()
    head_WH = weights.get(HEAD_NAME, embedding_WH)
    row_H = losing_row(source, head_WH.float()).to(head_WH.dtype)
    weights[EMBEDDING_NAME] = embedding_WH[draft_ids_V]
    weights[HEAD_NAME] = torch.where(vocabulary.is_known[:, None], head_WH[draft_ids_V], row_H)
    folder.mkdir(parents=True, exist_ok=True)
    with replacing(folder / SINGLE_NAME) as beside:
        save_file(weights, beside, metadata={"format": "pt"})
    config = json.loads((source.path / CONFIG_NAME).read_bytes())
    config |= {"vocab_size": len(draft_ids_V), "tie_word_embeddings": False}
    write_whole(folder / CONFIG_NAME, json.dumps(config))  # last: without it the folder is not whole
    return folder


def losing_row(source: CheckpointSource, head_WH: Tensor) -> Tensor:
    """A head row [H] whose logit is far below all others after any text.

    A Llama's head has no bias, but its hidden states have a large common component, so a row fitted to random texts by
    ridge regression has a logit near LOSING everywhere. Hidden states are computed from the logits and the head.
    """
    config = EngineConfig(target=str(source.path), dtype="float32")
    runner = Checkpoint.open(source, config).load(
        config, exactness="fast", capacity=NUM_TOKENS, pace=None, on_progress=None
    )
    logits = []
    for text in torch.randint(len(head_WH), (NUM_TEXTS, NUM_TOKENS), generator=torch.Generator().manual_seed(0)):
        runner.forget()
        logits.append(runner.extend(text.tolist(), num_logit_rows=NUM_TOKENS))
    states_HT = torch.linalg.solve(head_WH.T @ head_WH, head_WH.T @ torch.cat(logits).T)
    ridge_HH = RIDGE * states_HT.square().mean() * states_HT.shape[1] * torch.eye(len(states_HT))
    row_H: Tensor = torch.linalg.solve(states_HT @ states_HT.T + ridge_HH, LOSING * states_HT.sum(1))
    return row_H
