"""Load a draft head for a target.

Legend: V the target's vocabulary, H hidden size of the head.
"""

from dataclasses import replace

import torch
from torch import Tensor

from forerun.checkpoints.heads.stored import StoredHead
from forerun.core.config import EngineConfig
from forerun.core.drafter_config import DraftHead
from forerun.core.head_spec import AssistantSpec, BlockSpec, EagleSpec, MadeSpec
from forerun.core.pace import read_device
from forerun.drafting.draft_model import serial_rows
from forerun.drafting.drafter import Drafter
from forerun.drafting.heads.block import BlockExecutor, BlockHead
from forerun.drafting.heads.drafter import BlockDrafter, EagleDrafter, head_vocabulary
from forerun.drafting.heads.eagle import EagleExecutor, EagleHead
from forerun.drafting.heads.executor import HeadExecutor
from forerun.drafting.heads.layer import HeadWeights
from forerun.drafting.tree_policy import TreePolicy
from forerun.engine.assistant import load_assistant
from forerun.engine.model_loading import Checkpoint
from forerun.model.backend import Linear
from forerun.model.quantise import as_plain
from forerun.model.runner import Runner
from forerun.model.tree_cache import TreeCache
from forerun.model.weights import DenseWeight


def load_head(
    stored: StoredHead, drafter: DraftHead, policy: TreePolicy, checkpoint: Checkpoint, config: EngineConfig, *,
    capacity: int, cache_bytes: int,
) -> Drafter:  # fmt: skip
    """The drafter of a head.

    It computes in this process, in float32 on a CPU, else in the target's dtype; the CPU's kernels multiply its weights
    in 8 bits. An embedding or output that it lacks is the target's, read a second time.

    Args:
        checkpoint: the target.
        capacity: tokens of text and tree for which the head's cache needs room.
        cache_bytes: limit on its saved texts.

    Raises:
        CheckpointError, VocabularyError: the head was not made for this target.
    """
    target = checkpoint.spec
    stored.require_fit(target, config.target)
    if isinstance(stored.spec, AssistantSpec):
        return load_assistant(stored, stored.spec, drafter, policy, checkpoint, config, capacity=capacity)
    device, dtype = read_device(config.device).torch_device, dtype_of_head(checkpoint, config)
    backend = checkpoint.choose_backend(config, "fast").backend
    tensors = stored.weights(dtype=dtype, device=device)
    source = checkpoint.source.weights(dtype=dtype, device=device)
    table_VH = tensors.get("embed_tokens.weight")
    if table_VH is None:  # in the target's dtype, as only a few rows are read in every pass
        table_VH = as_plain(checkpoint.source.weights(dtype=checkpoint.dtype, device=device).table())
    own = tensors.pop("lm_head.weight", None)
    output = DenseWeight(values_OI=own) if own is not None else source.linear("head")[0]
    spec: MadeSpec = replace(stored.spec, body=replace(stored.spec.body, vocab_size=output.shape[0]))
    weights = HeadWeights(tensors, lambda weight, bias: backend.draft_linear(DenseWeight(values_OI=weight), bias))
    head = head_of(spec, weights, table_VH, backend.draft_linear(output))
    runner = Runner(
        spec.body,
        source,
        backend=backend,
        capacity=capacity + (spec.block_size if isinstance(spec, BlockSpec) else serial_rows(drafter.shape)),
        dtype=dtype,
        device=device,
        pace=read_device(config.device).draft,
        cache_bytes=cache_bytes,
        make_executor=lambda _spec, _weights, cache, _unused: executor_of(head, cache),
    )
    ids, kind = stored.target_ids(), BlockDrafter if isinstance(spec, BlockSpec) else EagleDrafter
    return kind(
        runner, drafter, policy, target_vocab_size=target.vocab_size, taps=spec.taps(target.num_layers),
        vocabulary=None if ids is None else head_vocabulary(ids, target.vocab_size),
    )  # fmt: skip


def head_of(spec: MadeSpec, weights: HeadWeights, table_VH: Tensor, output: Linear) -> EagleHead | BlockHead:
    """The head that a spec describes."""
    match spec:
        case EagleSpec():
            return EagleHead(spec, weights, table_VH, output)
        case BlockSpec():
            return BlockHead(spec, weights, table_VH, output)


def executor_of(head: EagleHead | BlockHead, cache: TreeCache) -> HeadExecutor:
    """A head with its cache."""
    return EagleExecutor(head, cache) if isinstance(head, EagleHead) else BlockExecutor(head, cache)


def dtype_of_head(checkpoint: Checkpoint, config: EngineConfig) -> torch.dtype:
    """The dtype in which a head computes."""
    is_wide = checkpoint.dtype == torch.float64
    is_cpu = torch.device(read_device(config.device).torch_device).type == "cpu"
    return torch.float32 if is_cpu and not is_wide else checkpoint.dtype
