"""Load a draft head for a target."""

from dataclasses import replace

import torch

from forerun.checkpoints.heads.stored import StoredHead
from forerun.core.config import EngineConfig
from forerun.core.drafter_config import DraftHead
from forerun.core.head_spec import AssistantSpec, DFlashSpec, MadeSpec
from forerun.core.pace import read_device
from forerun.drafting.draft_model import serial_rows
from forerun.drafting.drafter import Drafter
from forerun.drafting.heads.drafter import DFlashDrafter, EagleDrafter, head_vocabulary
from forerun.drafting.heads.layer import HeadWeights, embedding
from forerun.drafting.tree_policy import TreePolicy
from forerun.engine.assistant import load_assistant
from forerun.engine.model_loading import Checkpoint, longest_text
from forerun.engine.rank_weights import output_weight
from forerun.model.executor import ModelExecutor
from forerun.model.runner import Runner
from forerun.model.weights import DenseWeight


def load_head(
    stored: StoredHead,
    drafter: DraftHead,
    policy: TreePolicy,
    target: Runner,
    checkpoint: Checkpoint,
    config: EngineConfig,
    *,
    capacity: int,
    cache_bytes: int,
) -> Drafter:
    """The drafter of a head.

    It computes in this process, in float32 on a CPU, else in the target's dtype; the CPU's kernels multiply its weights
    in 8 bits. An embedding that it lacks is the target's, and so is an output, unless it must be held in another form.

    Args:
        checkpoint: the target's files.
        capacity: tokens of text and tree for which the head's cache needs room.
        cache_bytes: limit on its saved texts.

    Raises:
        CheckpointError, VocabularyError: the head was not made for this target.
    """
    shared = target.executor
    assert isinstance(shared, ModelExecutor), "a whole model"
    if isinstance(stored.spec, AssistantSpec):
        return load_assistant(stored, stored.spec, drafter, policy, target, checkpoint, config, capacity=capacity)
    device = read_device(config.device).torch_device
    dtype = dtype_of_head(checkpoint, config)
    backend = checkpoint.choose_backend(config, "fast").backend
    tensors = stored.weights(dtype=dtype, device=device)
    own_table = tensors.get("embed_tokens.weight")
    own = tensors.pop("lm_head.weight", None)
    num_outputs = target.spec.vocab_size if own is None else len(own)
    output = shared.output() if own is None else backend.draft_linear(DenseWeight(values_OI=own))
    if output is None:
        output = backend.draft_linear(output_weight(checkpoint.source, dtype=dtype, device=device))
    body = replace(stored.spec.body, vocab_size=num_outputs).for_length(longest_text(config, target.spec))
    spec: MadeSpec = replace(stored.spec, body=body)
    weights = HeadWeights(tensors, lambda weight, bias: backend.draft_linear(DenseWeight(values_OI=weight), bias))
    embed = shared.embed if own_table is None else embedding(own_table)
    runner = Runner(
        spec.body,
        None,
        backend=backend,
        capacity=capacity + (spec.block_size if isinstance(spec, DFlashSpec) else serial_rows(drafter.shape)),
        dtype=dtype,
        device=device,
        pace=read_device(config.device).draft,
        cache_bytes=cache_bytes,
        make_executor=lambda cache: backend.head_executor(spec, weights, embed, output, cache),
    )
    ids = stored.target_ids()
    kind = DFlashDrafter if isinstance(spec, DFlashSpec) else EagleDrafter
    return kind(
        runner,
        drafter,
        policy,
        target_vocab_size=target.spec.vocab_size,
        taps=spec.taps(target.spec.num_layers),
        vocabulary=None if ids is None else head_vocabulary(ids, target.spec.vocab_size),
    )


def dtype_of_head(checkpoint: Checkpoint, config: EngineConfig) -> torch.dtype:
    """The dtype in which a head computes."""
    is_wide = checkpoint.dtype == torch.float64
    is_cpu = torch.device(read_device(config.device).torch_device).type == "cpu"
    return torch.float32 if is_cpu and not is_wide else checkpoint.dtype
