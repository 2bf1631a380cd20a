"""Read how a checkpoint's linear layers are packed in 4 bits, or scaled in 8, from quantization_config in config.json.

Unsupported packings are refused, with the name of the key.
"""

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from forerun.core.errors import CheckpointError
from forerun.core.json_file import MAX_SIZE, JsonFile
from forerun.core.model_spec import ModelSpec

KEY: Final = "quantization_config"
Method = Literal["awq", "gptq", "compressed-tensors"]
BITS: Final = 4
PATTERN: Final = "re:"  # begins an exception that is a regular expression
PLAIN_RULE: Final = "-:"  # begins GPTQModel's regular expressions for layers that stay plain
MXFP4: Final = "MXFP4"
GROUP_UNIT: Final = 32  # inputs; group sizes are multiples of the kernels' smallest group
SUPPORTED: Final = (
    "4 bits in groups of a multiple of 32 inputs, or one group for an output: AWQ's gemm layout, GPTQ without "
    "activation order, compressed-tensors' pack-quantized; FP8 (e4m3) with a scale for each block or tensor; MXFP4 of "
    "gpt-oss's experts. Choose "
    "such a checkpoint, or the original one; --weights int4 or int8 rounds its weights on loading"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """The packing of the packed layers.

    Args:
        method: the layout of the tensors.
        group_size: inputs that share a scale and a zero; None: all inputs of an output.
        is_symmetric: whether every zero is 8. AWQ and GPTQ store it nevertheless, compressed-tensors does not.
        zero_offset: added to stored zeros: 1 for GPTQ's first version, which stores zero - 1.
        exceptions: the layers, or parts of their names, that the config leaves plain.
    """

    method: Method
    group_size: int | None
    is_symmetric: bool = False
    zero_offset: int = 0
    exceptions: tuple[str, ...] = ()

    @property
    def stored_format(self) -> str:
        """The name of the format for users."""
        return {"awq": "AWQ int4", "gptq": "GPTQ int4", "compressed-tensors": "pack-quantized int4"}[self.method]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fp8Scaling:
    """Linear layers are 8-bit floats with a scale for each block of (outputs, inputs); None: one for the tensor."""

    block: tuple[int, int] | None


Quantisation: TypeAlias = Packing | Fp8Scaling | Literal["MXFP4"]


def read_packing(config: JsonFile) -> Quantisation | None:
    """The packing of the checkpoint with this config.json; None if its weights are plain.

    Raises:
        CheckpointError: the quantisation is not supported, or the config contradicts itself.
    """
    if not config.has(KEY):
        return None
    quantised = config.nested(KEY)
    match quantised.text("quant_method").lower():
        case "awq":
            return _read_awq(quantised)
        case "gptq":
            return _read_gptq(quantised)
        case "compressed-tensors":
            return _read_compressed(quantised)
        case "fp8":
            return _read_fp8(quantised)
        case "mxfp4":  # of experts; the names of tensors show which are packed
            return MXFP4
        case _:
            raise _unsupported(quantised, "quant_method")


def require_experts(config: JsonFile, spec: ModelSpec) -> None:
    """Refuse MXFP4 in a model without experts, for which no layout is known."""
    if read_packing(config) == MXFP4 and not spec.num_experts:
        raise _unsupported(config.nested(KEY), "quant_method")


def _read_awq(quantised: JsonFile) -> Packing:
    """AutoAWQ's keys, and GPTQModel's for the same layout."""
    _require(quantised, "zero_point", True)
    _require(quantised, "desc_act", False)
    for key in ("version", "format", "checkpoint_format"):
        if quantised.text(key, "gemm").lower() != "gemm":
            raise _unsupported(quantised, key)
    _require_bits(quantised, "bits", "w_bit")
    group_size = _read_group_size(quantised, "q_group_size" if quantised.has("q_group_size") else "group_size")
    return Packing(method="awq", group_size=group_size, exceptions=_read_names(quantised, "modules_to_not_convert"))


def _read_gptq(quantised: JsonFile) -> Packing:
    """AutoGPTQ's keys and GPTQModel's. Both versions of the layout are read; the first is the usual one."""
    _require(quantised, "desc_act", False)
    _require(quantised, "is_marlin_format", False)
    _require(quantised, "lm_head", False)
    _require(quantised, "pack_dtype", "int32")
    versions = {quantised.text(key, "gptq").lower() for key in ("checkpoint_format", "format") if quantised.has(key)}
    if not versions <= {"gptq"} and versions != {"gptq_v2"}:
        raise _unsupported(quantised, "checkpoint_format" if quantised.has("checkpoint_format") else "format")
    _require_bits(quantised, "bits", "w_bit")
    return Packing(
        method="gptq",
        group_size=_read_group_size(quantised, "group_size"),
        is_symmetric=quantised.flag("sym", False),
        zero_offset=0 if versions == {"gptq_v2"} else 1,
        exceptions=(*_read_names(quantised, "modules_to_not_convert"), *_read_plain_rules(quantised)),
    )


def _read_compressed(quantised: JsonFile) -> Packing:
    """compressed-tensors' keys: one group of linear layers, with only their weights quantised."""
    _require(quantised, "format", "pack-quantized")
    for key in ("kv_cache_scheme", "transform_config"):
        _require_empty(quantised, key)
    _require(quantised.nested("sparsity_config"), "format", "dense")
    groups = quantised.nested("config_groups")
    if len(groups.values) != 1:
        raise quantised.wrong("config_groups", f"one group of layers; supported are {SUPPORTED}")
    group = groups.nested(next(iter(groups.values)))
    for key in ("input_activations", "output_activations"):
        _require_empty(group, key)
    _require(group, "format", "pack-quantized")
    if group.values.get("targets") != ["Linear"]:
        raise group.wrong("targets", '["Linear"], all linear layers but the ones under "ignore"')
    return Packing(
        method="compressed-tensors",
        group_size=_read_strategy(group.nested("weights")),
        is_symmetric=group.nested("weights").flag("symmetric", True),
        exceptions=_read_names(quantised, "ignore"),
    )


def _read_fp8(quantised: JsonFile) -> Fp8Scaling:
    """transformers' keys. The rounding of activations is ignored, and so are the names of plain layers, which the
    tensors show."""
    _require(quantised, "fmt", "e4m3")
    match quantised.values.get("weight_block_size"):
        case None:
            return Fp8Scaling(block=None)
        case [int(num_out), int(num_in)] if 0 < num_out <= MAX_SIZE and 0 < num_in <= MAX_SIZE:
            return Fp8Scaling(block=(num_out, num_in))
        case _:
            raise quantised.wrong("weight_block_size", "two sizes such as [128, 128], or null for one scale a tensor")


def _read_strategy(weights: JsonFile) -> int | None:
    """The group size. Activation order "weight" or "static" is ignored, because it leaves the columns in place."""
    _require_bits(weights, "num_bits")
    _require(weights, "type", "int")
    _require(weights, "dynamic", False)
    if weights.values.get("actorder") not in (None, False, "weight", "static"):
        raise _unsupported(weights, "actorder")
    match weights.text("strategy"):
        case "channel":
            if weights.has("group_size") and weights.values["group_size"] != -1:
                raise weights.wrong("group_size", "absent with strategy 'channel'")
            return None
        case "group":
            return _read_group_size(weights, "group_size", least=GROUP_UNIT)
        case _:
            raise _unsupported(weights, "strategy")


def _read_group_size(quantised: JsonFile, key: str, *, least: int = -1) -> int | None:
    group_size = quantised.integer(key, least=least, most=MAX_SIZE)
    if group_size == -1:
        return None
    if group_size < GROUP_UNIT or group_size % GROUP_UNIT:
        raise quantised.wrong(key, f"a multiple of {GROUP_UNIT}, or -1 for one group; supported are {SUPPORTED}")
    return group_size


def _require_bits(quantised: JsonFile, *keys: str) -> None:
    given = [key for key in keys if quantised.has(key)]
    for key in given or keys[:1]:
        if quantised.integer(key) != BITS:
            raise _unsupported(quantised, key)


def _require(quantised: JsonFile, key: str, wanted: object) -> None:
    """Refuse a key with another value; the key may be absent."""
    if quantised.has(key) and quantised.values[key] != wanted:
        raise quantised.wrong(key, f"{wanted!r}; supported are {SUPPORTED}")


def _require_empty(quantised: JsonFile, key: str) -> None:
    if quantised.values.get(key):
        raise quantised.wrong(key, f"absent or empty; supported are {SUPPORTED}")


def _read_names(quantised: JsonFile, key: str) -> tuple[str, ...]:
    names = quantised.values.get(key) or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise quantised.wrong(key, "a list of the names of layers")
    return tuple(names)


def _read_plain_rules(quantised: JsonFile) -> tuple[str, ...]:
    """GPTQModel's rules for layers that stay plain, as patterns."""
    rules = quantised.values.get("dynamic") or {}
    if not isinstance(rules, dict) or any(value or not key.startswith(PLAIN_RULE) for key, value in rules.items()):
        raise quantised.wrong("dynamic", f"absent, or rules that begin with '{PLAIN_RULE}'; supported are {SUPPORTED}")
    return tuple(PATTERN + rule.removeprefix(PLAIN_RULE) for rule in rules)


def _unsupported(quantised: JsonFile, key: str) -> CheckpointError:
    return quantised.wrong(key, f"that of a supported packing: {SUPPORTED}")
