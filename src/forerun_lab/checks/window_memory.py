"""Memory of the cache of a long text, of a model with the windows of Gemma 3 and few small weights, on a CPU.

The cache has the shape of Gemma 3 270M (or another, by the flags) in bfloat16; hidden size, MLP and query heads are
small, so that 32,768 tokens are read in minutes. Memory is the pages that the system says are there
(/proc/self/pagemap), and of the process its resident memory. python -m forerun_lab.checks.window_memory
"""

import argparse
import random
from mmap import PAGESIZE
from pathlib import Path
from time import perf_counter
from unittest.mock import patch

import numpy as np
import torch

from forerun.backends.choose import choose_backend
from forerun.checkpoints.huggingface.names import fused_shapes, tensor_plan
from forerun.checkpoints.typed_weights import LoadedWeights
from forerun.core.model_spec import ModelSpec, RopeSpec
from forerun.core.sliding import kv_bytes_on_cpu
from forerun.model.runner import PREFILL_ROWS, Runner
from forerun.model.sliding_slots import SlidingSlots

MIB = 1 << 20


def spec_of(arguments: argparse.Namespace) -> ModelSpec:
    return ModelSpec(
        family="gemma3_text", num_layers=arguments.layers, hidden_size=64, num_heads=arguments.kv_heads,
        num_kv_heads=arguments.kv_heads, head_dim=256, intermediate_size=64, vocab_size=256,
        max_positions=arguments.tokens + PREFILL_ROWS, norm_eps=1e-6, norms="around", wide_norms=True, gate="gelu_tanh",
        qk_norm=True, window=arguments.window, sliding_rope=RopeSpec(), rope=RopeSpec(theta=1e6),
        sliding_layers=tuple(layer for layer in range(arguments.layers) if layer % 6 != 5),
    )  # fmt: skip


def runner_of(spec: ModelSpec, saved_bytes: int) -> Runner:
    generator = torch.Generator().manual_seed(1)
    weights = {
        name: (torch.randn(shape, generator=generator) / shape[-1] ** 0.5).bfloat16()
        for name, shape in fused_shapes(tensor_plan(spec)).items()
    }
    return Runner(
        spec, LoadedWeights(weights), device="cpu", capacity=spec.max_positions, dtype=torch.bfloat16,
        backend=choose_backend("exact", dtype=torch.bfloat16, device="cpu", head_dim=spec.head_dim).backend,
        cache_bytes=saved_bytes,
    )  # fmt: skip


def resident_bytes(tensor: torch.Tensor) -> int:
    """Memory that a tensor's pages take, those of zeros that were only read included."""
    first = tensor.data_ptr() // PAGESIZE
    end = -(-(tensor.data_ptr() + tensor.nbytes) // PAGESIZE)
    with Path("/proc/self/pagemap").open("rb") as pages:
        pages.seek(8 * first)
        entries = np.frombuffer(pages.read(8 * (end - first)), dtype=np.uint64)
    return int((entries >> np.uint64(63)).sum()) * PAGESIZE


def process_bytes() -> int:
    """Resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGESIZE


def measure(name: str, spec: ModelSpec, num_tokens: int, saved_bytes: int) -> list[torch.Tensor]:
    """Read a random text, print what its cache takes, and return logits behind it and behind a part of it."""
    runner = runner_of(spec, saved_bytes)
    rng = random.Random(2)
    text = [rng.randrange(spec.vocab_size) for _ in range(num_tokens)]
    began = perf_counter()
    storage = runner.cache.storage_2LSKD
    most = 0
    process = process_bytes()
    for num_read, _ in runner.read(text):
        if num_read % 4096 == 0:
            most = max(most, resident_bytes(storage))
    seconds = perf_counter() - began
    now = resident_bytes(storage)
    process = process_bytes() - process
    logits = [runner.extend([1, 2, 3], num_logit_rows=3)]
    runner.sync(text[:-500])
    logits.append(runner.extend([1, 2, 3], num_logit_rows=3))
    saved = runner._warm._rows_N2LBKD
    before = resident_bytes(saved)
    began = perf_counter()
    runner.recall([5], "another owner")
    save_s = perf_counter() - began
    saved_now = resident_bytes(saved) - before
    began = perf_counter()
    runner.recall(text[:-500])
    sizes = [f"{num_bytes / MIB:.1f}" for num_bytes in (now, max(most, now), process, saved_now)]
    times = [f"{1e3 * save_s:.0f}", f"{1e3 * (perf_counter() - began):.0f}"]
    print("|", " | ".join([name, *sizes[:3], f"{seconds:.0f}", sizes[3], *times, str(len(runner.cached_ids))]), "|")
    return logits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=32768)
    parser.add_argument("--layers", type=int, default=18)
    parser.add_argument("--kv-heads", type=int, default=1)
    parser.add_argument("--window", type=int, default=512)
    arguments = parser.parse_args()
    torch.set_num_threads(2)
    spec = spec_of(arguments)
    num_tokens = arguments.tokens
    layer = spec.kv_bytes_per_token(2) // spec.num_layers
    num_sliding = len(spec.sliding_layers)
    least = layer * (num_sliding * spec.window_of(0) + (spec.num_layers - num_sliding) * num_tokens)  # type: ignore[operator]
    counted = kv_bytes_on_cpu(spec, num_tokens, 2)
    print(f"windows and full layers {least / MIB:.1f} MiB, with the margin {counted / MIB:.1f} MiB")
    print(f"whole text {spec.kv_bytes_per_token(2) * num_tokens / MIB:.1f} MiB")
    print(
        "| cache | MiB | at most | process, MiB | read, s | saved, MiB | saving, ms | recalling, ms | tokens recalled |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    room = 2 * num_tokens * spec.kv_bytes_per_token(2)
    given_back = measure("gives back", spec, num_tokens, room)
    with patch.object(SlidingSlots, "pass_by", lambda self, length: None):
        whole = measure("whole text", spec, num_tokens, room)
    print("same logits:", all(map(torch.equal, given_back, whole)))


if __name__ == "__main__":
    main()
