"""What is wrong with a packed checkpoint is refused by its file, its key or tensor, and what was found there."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from forerun.checkpoints.huggingface.folder import HuggingFaceFolder
from forerun.core.errors import CheckpointError
from forerun.model.weights import DenseWeight, Int4Weight, Int8Weight
from tests.checkpoints.folders import LLAMA, SINGLE, write_config
from tests.checkpoints.packed import write_packed

SIZES: Final[dict[str, Any]] = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
LAYER: Final = "model.layers.1.mlp.down_proj"  # 64 outputs of 96 inputs
PLAIN: Final = torch.ones(64, 96)  # of LAYER
Tensors = dict[str, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One thing wrong with a checkpoint, and words that its refusal must hold.

    Args:
        config: keys of quantization_config with new values; ... leaves a key out.
        tensors: suffixes of LAYER's tensors with what becomes of them; None takes one away.
    """

    method: str
    words: tuple[str, ...]
    config: Mapping[str, object] = field(default_factory=dict)
    tensors: Mapping[str, Callable[[Tensor], Tensor] | Tensor | None] = field(default_factory=dict)


def fault(method: str, *words: str, config: Mapping[str, object] | None = None, **tensors: Any) -> Fault:
    return Fault(method=method, words=words, config=config or {}, tensors=tensors)


def in_group(**changes: object) -> dict[str, object]:
    """A config_groups with one key of its weights, or of the group, changed."""
    weights: dict[str, object] = {"num_bits": 4, "type": "int", "symmetric": False, "strategy": "group"}
    weights["group_size"] = 32
    group: dict[str, object] = {"targets": ["Linear"], "weights": weights}
    for key, value in changes.items():
        (group if key in ("targets", "input_activations", "output_activations", "format") else weights)[key] = value
    return {"config_groups": {"group_0": group}}


def shorter(tensor: Tensor) -> Tensor:
    return tensor[:-1].contiguous()


def with_nan(tensor: Tensor) -> Tensor:
    return tensor.index_fill(0, torch.tensor([1]), float("nan"))


def other_order(g_idx: Tensor) -> Tensor:
    return g_idx.flip(0).contiguous()


FAULTS: Final = (
    fault("awq", "quant_method is 'bitsandbytes'", config={"quant_method": "bitsandbytes"}),
    fault("awq", "quant_method is missing", config={"quant_method": ...}),
    fault("awq", "bits is 3", "4 bits", config={"bits": 3}),
    fault("awq", "bits is missing", config={"bits": ...}),
    fault("awq", "bits is 8", config={"w_bit": 4, "bits": 8}),
    fault("awq", "version is 'gemv'", "gemm", config={"version": "gemv"}),
    fault("awq", "version is 'gemv_fast'", "gemm", config={"version": "gemv_fast"}),
    fault("awq", "version is 'marlin'", "gemm", config={"version": "marlin"}),
    fault("awq", "zero_point is False", config={"zero_point": False}),
    fault("awq", "group_size is 48", "multiple of 32", config={"group_size": 48}),
    fault("awq", "group_size is 0", config={"group_size": 0}),
    fault("awq", "group_size is 16", config={"group_size": 16}),
    fault("awq", "group_size is -2", config={"group_size": -2}),
    fault("awq", "q_proj", "64 inputs", "multiple of 96", config={"group_size": 96}),
    fault("awq", "down_proj", "96 inputs", "multiple of 64", config={"group_size": 64}),
    fault("gptq", "has shape [3, ", "needs [2, ", config={"group_size": 64}),
    fault("awq", "modules_to_not_convert", "a list", config={"modules_to_not_convert": "lm_head"}),
    fault("awq", f"says that {LAYER} is plain", config={"modules_to_not_convert": [LAYER]}),
    fault("awq", f"lack tensor '{LAYER}.qzeros'", qzeros=None),
    fault("awq", f"lack tensor '{LAYER}.scales'", scales=None),
    fault("awq", f"lack tensor '{LAYER}.qweight'", qweight=None, qzeros=None, scales=None),
    fault("awq", f"'{LAYER}.qweight' has shape [95, 8]", "[96, 8]", qweight=shorter),
    fault("awq", f"'{LAYER}.qzeros' has shape [2, 8]", "[3, 8]", qzeros=shorter),
    fault("awq", f"'{LAYER}.scales' has shape [2, 64]", "[3, 64]", scales=shorter),
    fault("awq", f"'{LAYER}.qweight' is stored as F32", "I32", qweight=Tensor.float),
    fault("awq", f"'{LAYER}.scales' is stored as F64", "F16 or BF16 or F32", scales=Tensor.double),
    fault("awq", f"'{LAYER}.scales' is stored as I32", scales=Tensor.int),
    fault("awq", f"'{LAYER}.qzeros'", "stored as I8", qzeros=lambda tensor: tensor.to(torch.int8)),
    fault("awq", f"{LAYER}.scales holds NaN or infinity", scales=with_nan),
    fault("awq", f"holds tensor '{LAYER}.g_idx'", g_idx=torch.arange(96).int()),
    fault("awq", f"a plain '{LAYER}.weight'", "packed", weight=PLAIN, qweight=None, qzeros=None, scales=None),
    fault("awq", f"holds tensor '{LAYER}.q", config={"modules_to_not_convert": [LAYER]}, weight=PLAIN),
    fault("gptq", "holds tensor", "g_idx", config={"quant_method": "awq", "checkpoint_format": "gemm"}),
    fault("gptq", "desc_act is True", config={"desc_act": True}),
    fault("gptq", "is_marlin_format is True", config={"is_marlin_format": True}),
    fault("gptq", "checkpoint_format is 'marlin'", config={"checkpoint_format": "marlin"}),
    fault("gptq", "bits is 2", config={"bits": 2}),
    fault("gptq", "sym is 'yes'", config={"sym": "yes"}),
    fault("gptq", "dynamic is", config={"dynamic": {"+:.*": {"bits": 8}}}),
    fault("gptq", "lm_head is True", config={"lm_head": True}),
    fault("gptq", "pack_dtype is 'int64'", config={"pack_dtype": "int64"}),
    fault("gptq", "q_proj.qzeros holds numbers from", "sym true", config={"sym": True}),
    fault("gptq", f"{LAYER}.g_idx does not number groups of 32", "activation order", g_idx=other_order),
    fault("gptq", f"'{LAYER}.g_idx' has shape [95]", g_idx=shorter),
    fault("gptq", f"'{LAYER}.g_idx' is stored as I64", g_idx=Tensor.long),
    fault("gptq", f"{LAYER}.bias is not all zeros", bias=torch.ones(64)),
    fault("gptq", f"'{LAYER}.bias' has shape [63]", bias=torch.zeros(63)),
    fault("compressed", "format is 'marlin-24'", config={"format": "marlin-24"}),
    fault("compressed", "config_groups", "one group", config={"config_groups": {}}),
    fault("compressed", "weights.num_bits is 8", config=in_group(num_bits=8)),
    fault("compressed", "weights.type is 'float'", config=in_group(type="float")),
    fault("compressed", "weights.strategy is 'block'", config=in_group(strategy="block")),
    fault("compressed", "weights.group_size is -1", config=in_group(group_size=-1)),
    fault("compressed", "weights.group_size is 32", "channel", config=in_group(strategy="channel")),
    fault("compressed", "weights.actorder is 'group'", config=in_group(actorder="group")),
    fault("compressed", "weights.dynamic is True", config=in_group(dynamic=True)),
    fault("compressed", "input_activations", config=in_group(input_activations={"num_bits": 8})),
    fault("compressed", "format is 'int-quantized'", config=in_group(format="int-quantized")),
    fault("compressed", "targets is ['re:.*mlp.*']", config=in_group(targets=["re:.*mlp.*"])),
    fault("compressed", "kv_cache_scheme", config={"kv_cache_scheme": {"num_bits": 8}}),
    fault("compressed", "transform_config", config={"transform_config": {"config_groups": {"R1": {}}}}),
    fault("compressed", "sparsity_config.format", config={"sparsity_config": {"format": "sparse-24-bitmask"}}),
    fault("compressed", "holds tensor", "weight_zero_point", config=in_group(symmetric=True)),
    fault("compressed", f"lack tensor '{LAYER}.weight_zero_point'", weight_zero_point=None),
    fault("compressed", f"{LAYER}.weight_shape holds [64, 95]", "[64, 96]", weight_shape=torch.tensor([64, 95])),
    fault("compressed", f"'{LAYER}.weight_packed' has shape [63, 12]", weight_packed=shorter),
    fault("compressed", f"{LAYER}.weight_scale holds NaN", weight_scale=with_nan),
    fault("compressed", f"holds tensor '{LAYER}.weight_g_idx'", weight_g_idx=torch.arange(96).int()),
)  # fmt: skip


def plain_tensors() -> Tensors:
    """A tiny Llama, whose tensors need only their shapes."""
    heads = LLAMA["num_attention_heads"] // LLAMA["num_key_value_heads"]
    shapes = {"model.embed_tokens.weight": (16, 64), "model.norm.weight": (64,), "lm_head.weight": (16, 64)}
    for prefix in ("model.layers.0.", "model.layers.1."):
        shapes |= {
            f"{prefix}{name}.weight": shape
            for name, shape in {
                "input_layernorm": (64,), "post_attention_layernorm": (64,), "self_attn.q_proj": (64, 64),
                "self_attn.k_proj": (64 // heads, 64), "self_attn.v_proj": (64 // heads, 64),
                "self_attn.o_proj": (64, 64), "mlp.gate_proj": (96, 64), "mlp.up_proj": (96, 64),
                "mlp.down_proj": (64, 96),
            }.items()
        }  # fmt: skip
    return {name: torch.ones(shape) for name, shape in shapes.items()}


def write(folder: Path, method: str) -> Tensors:
    """A good checkpoint; its tensors."""
    write_packed(write_config(folder, **SIZES), plain_tensors(), method, group_size=32)
    return load_file(folder / SINGLE)


def write_faulty(folder: Path, wrong: Fault) -> None:
    tensors = write(folder, wrong.method)
    for suffix, change in wrong.tensors.items():
        name = f"{LAYER}.{suffix}"
        if change is None:
            del tensors[name]
        else:
            tensors[name] = change if isinstance(change, Tensor) else change(tensors[name])
    save_file(tensors, folder / SINGLE)
    config = json.loads((folder / "config.json").read_text())
    changed = {**config["quantization_config"], **wrong.config}
    config["quantization_config"] = {key: value for key, value in changed.items() if value is not ...}
    (folder / "config.json").write_text(json.dumps(config))


def read_all(folder: Path) -> dict[str, object]:
    """Every weight, by its name."""
    source = HuggingFaceFolder(name="x", folder=folder)
    weights = source.weights(dtype=torch.float32)
    names = [f"layers.{layer}.{part}" for layer in (0, 1) for part in ("qkv", "attention_out", "gate_up", "mlp_out")]
    return {name: weights.linear(name)[0] for name in (*names, "head")}


@pytest.mark.parametrize("wrong", FAULTS, ids=lambda wrong: f"{wrong.method}: {wrong.words[0]}")
def test_a_fault_is_refused_by_name(wrong: Fault, tmp_path: Path) -> None:
    write_faulty(tmp_path, wrong)
    with pytest.raises(CheckpointError) as caught:
        read_all(tmp_path)
    message = str(caught.value)
    assert all(word in message for word in (str(tmp_path), *wrong.words)), message
    assert "\n" not in message


def test_the_good_checkpoints_are_read(tmp_path: Path) -> None:
    for method in ("awq", "gptq", "compressed"):
        (tmp_path / method).mkdir()
        write(tmp_path / method, method)
        kinds = {name: type(weight) for name, weight in read_all(tmp_path / method).items()}
        assert kinds.pop("head") is DenseWeight
        assert set(kinds.values()) == {Int4Weight}, method


def test_a_plain_checkpoint_with_a_quantization_config_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "awq")
    save_file(plain_tensors(), tmp_path / SINGLE)
    with pytest.raises(CheckpointError, match=r"plain '.*q_proj\.weight'"):
        read_all(tmp_path)


def except_layers(folder: Path, names: list[str], tensors: Tensors) -> None:
    """Make layers plain, as config and tensors have it."""
    plain = plain_tensors()
    for name in names:
        tensors = {stored: tensor for stored, tensor in tensors.items() if not stored.startswith(f"{name}.")}
        tensors[f"{name}.weight"] = plain[f"{name}.weight"]
    save_file(tensors, folder / SINGLE)
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"]["modules_to_not_convert"] = names
    (folder / "config.json").write_text(json.dumps(config))


def test_layers_may_be_left_plain_but_not_a_part_of_what_is_multiplied_as_one(tmp_path: Path) -> None:
    tensors = write(tmp_path, "awq")
    except_layers(tmp_path, [LAYER], tensors)
    weights = read_all(tmp_path)
    assert isinstance(weights["layers.1.mlp_out"], DenseWeight)
    assert isinstance(weights["layers.0.mlp_out"], Int4Weight)
    except_layers(tmp_path, ["model.layers.0.mlp.up_proj"], tensors)
    with pytest.raises(CheckpointError, match=r"up_proj.weight' is plain and .*gate_proj.weight' is packed"):
        read_all(tmp_path)


def test_eight_bits_are_rounded_from_the_packed_weights_and_four_leave_them(tmp_path: Path) -> None:
    write(tmp_path, "awq")
    source = HuggingFaceFolder(name="x", folder=tmp_path)
    for weight_format, kind in (("int8", Int8Weight), ("int4", Int4Weight)):
        weights = source.weights(dtype=torch.float32, weight_format=weight_format)  # type: ignore[arg-type]
        weight = weights.linear("layers.0.qkv")[0]
        assert isinstance(weight, kind)
        assert isinstance(weights.linear("head")[0], Int8Weight)
        if isinstance(weight, Int4Weight):
            own = source.weights(dtype=torch.float32).linear("layers.0.qkv")[0]
            assert isinstance(own, Int4Weight)
            assert torch.equal(weight.scales_OG, own.scales_OG)
