"""What a draft head is given of its target, and the drafter of a head with layers and a cache of its own."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

import torch

from forerun.backends.backend import Backend
from forerun.checkpoints.source import CheckpointSource
from forerun.core.drafter_config import DraftHead
from forerun.core.pace import Pace
from forerun.drafting.heads.drafter import HeadDrafter, head_vocabulary
from forerun.drafting.heads.executor import HeadExecutor
from forerun.drafting.heads.kind import HeadSpec, StoredHead
from forerun.drafting.heads.layer import Embed, HeadWeights, Linear, embedding
from forerun.drafting.policies import TreePolicy
from forerun.model.executor import ModelExecutor
from forerun.model.runner import Runner
from forerun.model.tree_cache import TreeCache
from forerun.model.weights import DenseWeight, Weight

Spec = TypeVar("Spec", bound=HeadSpec)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadLoading:
    """What the engine gives a draft head that it loads.

    Args:
        config, policy: of the drafter.
        target: the loaded target.
        source: the target's files.
        backend: the fastest one for a draft on the target's device.
        dtype: the target's.
        pace: of the draft, on a device whose speed is set.
        capacity: tokens of text and tree for which a cache needs room.
        max_length: tokens of the longest text.
        cache_bytes: limit on saved texts.
        output_weight: reads the target's output projection from its files, in a dtype.
    """

    config: DraftHead
    policy: TreePolicy
    target: Runner
    source: CheckpointSource
    backend: Backend
    dtype: torch.dtype
    device: str
    pace: Pace | None
    capacity: int
    max_length: int
    cache_bytes: int
    output_weight: Callable[[torch.dtype], Weight]

    @property
    def shared(self) -> ModelExecutor:
        """The target's executor, whose embedding and output projection a head may use."""
        executor = self.target.executor
        assert isinstance(executor, ModelExecutor), "a whole model"
        return executor


def load_with_cache(
    stored: StoredHead,
    given: HeadLoading,
    spec: Spec,
    *,
    num_behind: int,
    make_executor: Callable[[Spec, HeadWeights, Embed, Linear, TreeCache], HeadExecutor],
    drafter: type[HeadDrafter],
) -> HeadDrafter:
    """The drafter of a head with a cache of its own.

    It computes in this process, in float32 on a CPU, else in the target's dtype; the CPU's kernels multiply its weights
    in 8 bits. An embedding that it lacks is the target's, and so is an output, unless it must be held in another form.

    Args:
        spec: that of `stored`.
        num_behind: rows that it needs in its cache behind the text.
        make_executor: binds the head, with its weights, embedding and output, to its cache.
        drafter: its class.
    """
    device = given.device
    backend = given.backend
    is_cpu = torch.device(device).type == "cpu"
    dtype = torch.float32 if is_cpu and given.dtype != torch.float64 else given.dtype
    tensors = stored.weights(dtype=dtype, device=device)
    own_table = tensors.get("embed_tokens.weight")
    own = tensors.pop("lm_head.weight", None)
    target = given.target.spec
    num_outputs = target.vocab_size if own is None else len(own)
    output = given.shared.output() if own is None else backend.draft_linear(DenseWeight(values_OI=own))
    if output is None:
        output = backend.draft_linear(given.output_weight(dtype))
    body = replace(spec.body, vocab_size=num_outputs).for_length(given.max_length)
    sized: Spec = replace(spec, body=body)  # type: ignore[type-var] # every spec is a dataclass
    weights = HeadWeights(tensors, lambda weight, bias: backend.draft_linear(DenseWeight(values_OI=weight), bias))
    embed = given.shared.embed if own_table is None else embedding(own_table)
    runner = Runner(
        body,
        None,
        backend=backend,
        capacity=given.capacity + num_behind,
        dtype=dtype,
        device=device,
        pace=given.pace,
        cache_bytes=given.cache_bytes,
        make_executor=lambda cache: make_executor(sized, weights, embed, output, cache),
    )
    ids = stored.target_ids()
    return drafter(
        runner,
        given.config,
        given.policy,
        target_vocab_size=target.vocab_size,
        taps=spec.taps(target.num_layers),
        vocabulary=None if ids is None else head_vocabulary(ids, target.vocab_size),
    )
