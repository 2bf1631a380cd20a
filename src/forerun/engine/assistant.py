"""Load an assistant of Gemma 4."""

from forerun.backends.bind import embedding_scale
from forerun.checkpoints.heads.stored import StoredHead
from forerun.core.config import EngineConfig
from forerun.core.drafter_config import DraftHead
from forerun.core.head_spec import AssistantSpec
from forerun.core.pace import read_device
from forerun.drafting.draft_model import serial_rows
from forerun.drafting.drafter import Drafter
from forerun.drafting.heads.assistant_network import AssistantDrafter, AssistantExecutor, AssistantHead
from forerun.drafting.heads.layer import HeadWeights
from forerun.drafting.tree_policy import TreePolicy
from forerun.engine.model_loading import Checkpoint
from forerun.model.executor import ModelExecutor
from forerun.model.runner import Runner


def load_assistant(
    stored: StoredHead,
    spec: AssistantSpec,
    drafter: DraftHead,
    policy: TreePolicy,
    target: Runner,
    checkpoint: Checkpoint,
    config: EngineConfig,
    *,
    capacity: int,
) -> Drafter:
    """The drafter of an assistant, in the target's dtype. It reads the target's embedding, keys and values.

    Args:
        capacity: positions of the longest text.
    """
    shared = target.executor
    device = read_device(config.device).torch_device
    dtype = checkpoint.dtype
    assert isinstance(shared, ModelExecutor), "a whole model"
    source = checkpoint.source.weights(dtype=dtype, device=device)
    order = stored.token_order()
    head = AssistantHead(
        spec,
        HeadWeights(stored.weights(dtype=dtype, device=device)),
        embed=shared.embed,
        scale=embedding_scale(target.spec, dtype),
        final_norm=source.vector("final_norm"),
        eps=target.spec.norm_eps,
        order=None if order is None else order.to(device),
        capacity=capacity,
    )
    layers = [spec.layer_of(target.spec, layer) for layer in range(spec.body.num_layers)]
    executor = AssistantExecutor(head, target.cache, layers)
    runner = Runner(
        spec.body,
        None,
        backend=checkpoint.choose_backend(config, "fast").backend,
        capacity=serial_rows(drafter.shape),  # used only for measuring
        dtype=dtype,
        device=device,
        pace=read_device(config.device).draft,
        make_executor=lambda _: executor,
    )
    taps = spec.taps(target.spec.num_layers)
    return AssistantDrafter(runner, drafter, policy, target_vocab_size=target.spec.vocab_size, taps=taps)
