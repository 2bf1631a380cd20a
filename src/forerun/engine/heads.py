"""Load a draft head for a target.

Legend: V the target's vocabulary, W rows of the head's output, H hidden size of the head.
"""

from dataclasses import replace

import torch
from torch import Tensor

from forerun.checkpoints.heads.stored import StoredHead
from forerun.core.config import EngineConfig
from forerun.core.drafter_config import DraftHead
from forerun.core.head_spec import BlockSpec, EagleSpec, HeadSpec
from forerun.core.pace import read_device
from forerun.drafting.build import build_drafter
from forerun.drafting.draft_model import serial_rows
from forerun.drafting.drafter import Drafter
from forerun.drafting.heads.block import BlockExecutor, BlockHead
from forerun.drafting.heads.drafter import head_vocabulary
from forerun.drafting.heads.eagle import EagleExecutor, EagleHead
from forerun.drafting.heads.executor import HeadExecutor
from forerun.drafting.policies import Policies
from forerun.engine.model_loading import Checkpoint
from forerun.model.quantise import as_plain
from forerun.model.runner import Runner
from forerun.model.tree_cache import TreeCache


def load_head(
    stored: StoredHead, drafter: DraftHead, policies: Policies, checkpoint: Checkpoint, config: EngineConfig, *,
    capacity: int, cache_bytes: int,
) -> Drafter:  # fmt: skip
    """The drafter of a head.

    It computes with torch in this process: in float32 on a CPU, else in the target's dtype. Where the head has no
    embedding or output of its own, the target's are read a second time.

    Args:
        checkpoint: the target.
        capacity: tokens of text and tree for which the head's cache needs room.
        cache_bytes: limit on its saved texts.

    Raises:
        CheckpointError, VocabularyError: the head was not made for this target.
    """
    target = checkpoint.spec
    stored.require_fit(target, config.target)
    device, dtype = read_device(config.device).torch_device, dtype_of_head(checkpoint, config)
    weights = stored.weights(dtype=dtype, device=device)
    table_VH, head_WH = shared_weights(checkpoint, weights, dtype, device)
    body = replace(stored.spec.body, vocab_size=len(head_WH))
    spec = replace(stored.spec, body=body)
    runner = Runner(
        body,
        checkpoint.source.weights(dtype=dtype, device=device),
        backend=checkpoint.choose_backend(config, "fast").backend,
        capacity=capacity + (spec.block_size if isinstance(spec, BlockSpec) else serial_rows(drafter.shape)),
        dtype=dtype,
        device=device,
        pace=read_device(config.device).draft,
        cache_bytes=cache_bytes,
        make_executor=lambda _spec, _weights, cache, _unused: executor_of(spec, weights, table_VH, head_WH, cache),
    )
    target_ids = stored.target_ids()
    return build_drafter(
        drafter,
        policies,
        target=target,
        draft_runner=runner,
        vocabulary=None if target_ids is None else head_vocabulary(target_ids, target.vocab_size),
        taps=spec.taps(target.num_layers),
    )


def executor_of(
    spec: HeadSpec, weights: dict[str, Tensor], table_VH: Tensor, head_WH: Tensor, cache: TreeCache
) -> HeadExecutor:
    """The head with its cache."""
    match spec:
        case EagleSpec():
            return EagleExecutor(EagleHead(spec, weights, table_VH, head_WH), cache)
        case BlockSpec():
            return BlockExecutor(BlockHead(spec, weights, table_VH, head_WH), cache)


def dtype_of_head(checkpoint: Checkpoint, config: EngineConfig) -> torch.dtype:
    """The dtype in which a head computes."""
    is_wide = checkpoint.dtype == torch.float64
    is_cpu = torch.device(read_device(config.device).torch_device).type == "cpu"
    return torch.float32 if is_cpu and not is_wide else checkpoint.dtype


def shared_weights(
    checkpoint: Checkpoint, weights: dict[str, Tensor], dtype: torch.dtype, device: str
) -> tuple[Tensor, Tensor]:
    """The embedding [V, H] and the output [W, H]: the head's own, else the target's."""
    source = checkpoint.source.weights(dtype=dtype, device=device)
    table = weights["embed_tokens.weight"] if "embed_tokens.weight" in weights else as_plain(source.table())
    if "lm_head.weight" in weights:
        return table, weights["lm_head.weight"]
    weight, _ = source.linear("head")
    return table, as_plain(weight)
