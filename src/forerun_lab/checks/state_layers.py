"""Layers with a state or a convolution on the CPU: what they take of a pass, in models of random weights.

python -m forerun_lab.checks.state_layers write qwen3.5-0.8b model.gguf
python -m forerun_lab.checks.state_layers time model.gguf --tier avx2 --far 30000

The first writes a file in a published model's shape and in the types of a Q4_K_M file, since no real one is at hand.
The second prints the milliseconds of passes of one row and of 8, a chain, behind 480 tokens and behind as many as --far
says, with the share of the layers' own ops, and the seconds of a prompt of 480 tokens.
"""

import argparse
import json
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any, Final

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Type
from numpy.typing import NDArray

from forerun.backends.cpu.backend import NATIVE
from forerun.backends.cpu.executor import NativeExecutor
from forerun.backends.cpu.probe import KIND_NAMES, is_run
from forerun.checkpoints.huggingface.config import read_model_spec
from forerun.checkpoints.huggingface.names import tensor_plan
from forerun.checkpoints.open import open_source
from forerun.core.model_spec import ModelSpec
from forerun.model.executor import ForwardInput
from forerun.model.pass_times import stand_in
from forerun.model.runner import Runner
from tests.golden.gguf_writer import add_sizes
from tests.golden.random_gguf import ARCHITECTURES, add_keys

BLOCK_BYTES: Final = {Type.Q4_K: 144, Type.Q6_K: 210}  # of 256 weights
PROMPT: Final = 480
Config = dict[str, Any]


def qwen(hidden_size: int, intermediate_size: int) -> Config:
    return {
        "model_type": "qwen3_5_text", "architectures": ["Qwen3_5ForCausalLM"], "hidden_size": hidden_size,
        "intermediate_size": intermediate_size, "num_hidden_layers": 24, "num_attention_heads": 8,
        "num_key_value_heads": 2, "head_dim": 256, "vocab_size": 248_320, "linear_num_key_heads": 16,
        "linear_num_value_heads": 16, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4, "max_position_embeddings": 262_144, "rms_norm_eps": 1e-6,
        "tie_word_embeddings": True, "hidden_act": "silu", "attention_bias": False,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25},
    }  # fmt: skip


ATTENTION_OF_LFM2: Final = (2, 5, 8, 10, 12, 14)
CONFIGS: Final[dict[str, Config]] = {
    "qwen3.5-0.8b": qwen(1024, 3584),
    "qwen3.5-2b": qwen(2048, 6144),
    "lfm2-1.2b": {
        "model_type": "lfm2", "architectures": ["Lfm2ForCausalLM"], "hidden_size": 2048, "intermediate_size": 12_288,
        "block_ff_dim": 12_288, "block_auto_adjust_ff_dim": True, "block_multiple_of": 256,
        "block_ffn_dim_multiplier": 1.0, "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8,
        "vocab_size": 65_536, "conv_L_cache": 3, "conv_bias": False, "max_position_embeddings": 128_000,
        "norm_eps": 1e-5, "rope_theta": 1e6, "tie_embedding": True,
        "layer_types": ["full_attention" if layer in ATTENTION_OF_LFM2 else "conv" for layer in range(16)],
    },
}  # fmt: skip


def shapes_of(spec: ModelSpec) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The names of a folder's tensors; one of queries and their gates has the parts of all heads."""
    for name, place in tensor_plan(spec).items():
        head = re.search(r"q_proj(_gate)?\.(\d+)\.weight", name)
        if head is None:
            yield name.replace("dt_bias", "dt_proj.bias"), tuple(place.shape)
        elif head[1] is None and head[2] == "0":
            yield name.replace("q_proj.0", "q_proj"), (2 * spec.q_size, spec.hidden_size)


def type_of(name: str, shape: tuple[int, ...]) -> Type | None:
    """Of a tensor in a Q4_K_M file, about; None: float32."""
    is_vector = len(shape) != 2 or shape[0] <= 16 or shape[1] % 256 != 0
    if is_vector or "conv1d" in name or "shortconv.conv" in name:
        return None
    layer = re.search(r"blk\.(\d+)\.", name)
    is_even = layer is not None and int(layer[1]) % 2 == 0
    is_fine = name.startswith("token_embd") or (is_even and ("attn_v." in name or "ffn_down" in name))
    return Type.Q6_K if is_fine else Type.Q4_K


def random_codes(rng: np.random.Generator, kind: Type, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Random blocks whose scales give weights of a usual size."""
    blocks = rng.integers(0, 256, (shape[0] * shape[1] // 256, BLOCK_BYTES[kind]), dtype=np.uint8)
    if kind == Type.Q4_K:
        blocks[:, :4] = np.array([1.3e-4, 9.75e-4], np.float16).view(np.uint8)
    else:
        blocks[:, 208:] = np.array([1.5e-5], np.float16).view(np.uint8)
    return blocks.reshape(shape[0], -1)


def random_floats(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    values = rng.normal(size=shape)
    if name.endswith("ssm_a"):
        values = -np.abs(values) / 2
    elif "norm" in name:
        values = 1 + values / 10
    elif len(shape) == 2:
        values = values / 50
    return values.astype(np.float32)


def write(name: str, path: Path) -> None:
    config = CONFIGS[name]
    with TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(config))
        spec = read_model_spec(Path(folder))
    architecture = getattr(gguf.MODEL_ARCH, ARCHITECTURES[spec.family])
    names = gguf.get_tensor_name_map(architecture, spec.num_layers)
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[architecture])
    add_sizes(writer, spec)
    add_keys(writer, spec, config)
    rng = np.random.default_rng(0)
    for stored, shape in shapes_of(spec):
        is_final = spec.family == "lfm2" and stored == "model.norm.weight"
        own = "token_embd_norm.weight" if is_final else names.get_name(stored, try_suffixes=(".weight", ".bias"))
        flat = (shape[0], shape[-1]) if len(shape) == 3 else shape
        kind = type_of(own, flat)
        if kind is None:
            writer.add_tensor(own, random_floats(rng, own, flat))
        else:
            writer.add_tensor(own, random_codes(rng, kind, flat), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def chain(start: int, num_rows: int) -> ForwardInput:
    """A path of a tree behind so many tokens."""
    return ForwardInput(
        token_ids=[7919 * (start + row) % 60_000 for row in range(num_rows)],
        positions=list(range(start, start + num_rows)),
        first_slot=start,
        prefix_len=start,
        ancestry=np.tril(np.ones((num_rows, num_rows), np.bool_)) if num_rows > 1 else None,
        num_logit_rows=num_rows,
    )


def seconds(call: Callable[[], object]) -> float:
    began = perf_counter()
    call()
    return perf_counter() - began


def report(executor: NativeExecutor, start: int) -> None:
    """Print what passes behind a text of this length take."""
    for num_rows in (1, 8):
        inputs = chain(start, num_rows)
        passes = [seconds(partial(executor.run, inputs)) for _ in range(8)]
        kinds: dict[str, list[float]] = {}
        for _ in range(4):
            of_pass = dict.fromkeys(KIND_NAMES.values(), 0.0)
            for op, call in zip(executor.fused.ops, executor.calls(inputs), strict=True):
                if is_run(op, inputs):
                    of_pass[KIND_NAMES[op.kind]] += seconds(call)
            for kind, took in of_pass.items():
                kinds.setdefault(kind, []).append(took)
        times = {kind: 1e3 * median(took) for kind, took in kinds.items()}
        parts = ", ".join(
            f"{kind} {times[kind]:.2f} ms ({times[kind] / sum(times.values()):.1%})"
            for kind in ("delta_net", "convolve", "tree_attention")
        )
        print(f"{num_rows} rows behind {start}: {1e3 * median(passes[2:]):.1f} ms; of its ops {parts}")


def time_passes(path: str, tier: str | None, far: int) -> None:
    assert NATIVE.select_tier(tier), f"this build or this CPU lacks {tier}"
    source = open_source(path)
    weights = source.weights(dtype=torch.bfloat16, device="cpu")
    capacity = max(PROMPT, far) + 64
    runner = Runner(source.spec(), weights, backend=NATIVE, capacity=capacity, dtype=torch.bfloat16, device="cpu")
    executor = runner.executor
    assert isinstance(executor, NativeExecutor)
    print(f"prompt of {PROMPT}: {seconds(partial(runner.sync, chain(0, PROMPT).token_ids)):.2f} s")
    report(executor, PROMPT)
    if far:
        stand_in(runner.cache, far)
        report(executor, far)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    writing = commands.add_parser("write")
    writing.add_argument("name", choices=CONFIGS)
    writing.add_argument("path", type=Path)
    timing = commands.add_parser("time")
    timing.add_argument("path")
    timing.add_argument("--tier")
    timing.add_argument("--far", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.command == "write":
        write(arguments.name, arguments.path)
    else:
        time_passes(arguments.path, arguments.tier, arguments.far)


if __name__ == "__main__":
    main()
