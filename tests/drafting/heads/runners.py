"""Runners of draft heads, without an engine."""

from collections.abc import Callable

import torch

from forerun.backends.choose import choose_backend
from forerun.core.model_spec import ModelSpec
from forerun.model.executor import Executor
from forerun.model.runner import Runner
from forerun.model.tree_cache import TreeCache
from tests.drafting.heads.random_heads import CAPACITY


def runner_of(body: ModelSpec, executor: Callable[[TreeCache], Executor], cache_bytes: int = 0) -> Runner:
    """A head's cache, with its executor, in float64."""
    return Runner(
        body,
        None,
        backend=choose_backend("exact", dtype=torch.float64, device="cpu", head_dim=2).backend,
        capacity=CAPACITY,
        dtype=torch.float64,
        device="cpu",
        cache_bytes=cache_bytes,
        make_executor=executor,
    )
