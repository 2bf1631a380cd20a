"""Convert a GGUF file's metadata to a `ModelSpec`. Keys that need unsupported computation are refused by name.

Source: llama.cpp's keys (gguf-py/gguf/constants.py), and how its models of these architectures use them.
"""

from dataclasses import replace
from math import log, sqrt
from struct import unpack
from typing import Final

from forerun.checkpoints.families.family import Family
from forerun.checkpoints.families.known import BY_ARCHITECTURE
from forerun.checkpoints.gguf.header import GgufFile
from forerun.checkpoints.huggingface.config import MAX_LAYERS, MIN_POSITIONS, read_head_counts
from forerun.checkpoints.huggingface.rope import DEFAULT_THETA, MIN_THETA
from forerun.checkpoints.safetensors.header import StoredTensor
from forerun.checkpoints.safetensors.stored_bytes import read_bytes
from forerun.core.errors import CheckpointError
from forerun.core.json_file import MIN_NUMBER, JsonFile, short
from forerun.core.model_spec import ModelSpec, RopeSpec

EMBEDDING_NAME: Final = "token_embd.weight"
HEAD_NAME: Final = "output.weight"
DIVISORS_NAME: Final = "rope_freqs.weight"
SHORT_NAME = "rope_factors_short.weight"
LONG_NAME = "rope_factors_long.weight"
DIVISORS_NAMES: Final = (DIVISORS_NAME, SHORT_NAME, LONG_NAME)
ROTATED_KEY: Final = "rope.dimension_count"
TOKENS_KEY: Final = "tokenizer.ggml.tokens"
KEYS: Final = (
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "vocab_size",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.layer_norm_rms_epsilon",
    "attention.scale",
    "attention.sliding_window",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scale_linear",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
    "rope.scaling.attn_factor",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
    "rope.scaling.finetuned",
)
# Keys that some converters write into files of any architecture, with the value that has no effect.
WITHOUT_EFFECT: Final = {
    "expert_count": 0,
    "expert_used_count": 0,
    "expert_shared_count": 0,
    "expert_shared_feed_forward_length": 0,
    "pooling_type": 0,
    "attention.causal": True,
    "attention.max_alibi_bias": 0.0,
    "attention.clamp_kqv": 0.0,
    "use_parallel_residual": False,
    "tensor_data_layout": "Meta AI original pth",
}
MAX_DIVISOR: Final = 1e31  # 1e30 means that a pair is not rotated
RELATIVE_TOLERANCE: Final = 1e-6  # of a scale, which is stored as a float32


def read_model_spec(file: GgufFile) -> ModelSpec:
    """The architecture of a model.

    As in llama.cpp, a layer has a bias if the file holds one, and the head is the embedding if the file holds no head.

    Raises:
        CheckpointError: a key is missing or out of range, or requires something forerun does not compute.
    """
    family = _read_family(file)
    stated = file.section(f"{file.section('general.').text('architecture')}.")
    _refuse_unknown(stated, family)
    keys = family.gguf_usual(stated)
    num_heads, num_kv_heads = read_head_counts(keys, "attention.head_count", "attention.head_count_kv")
    max_positions = keys.integer("context_length", least=MIN_POSITIONS)
    window = keys.integer("attention.sliding_window", max_positions, least=MIN_POSITIONS)
    layers = range(keys.integer("block_count", most=MAX_LAYERS))

    def has_bias(module: str) -> bool:
        return any(f"blk.{layer}.{module}.bias" in file.tensors for layer in layers)

    sliding_layers = family.gguf_sliding(keys)
    head_dim = _read_head_dim(keys, num_heads, family)
    spec = ModelSpec(
        family=family.name,
        num_layers=len(layers),
        hidden_size=keys.integer("embedding_length"),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        intermediate_size=keys.integer("feed_forward_length"),
        vocab_size=_read_vocab_size(file),
        max_positions=max_positions,
        norm_eps=keys.number("attention.layer_norm_rms_epsilon"),
        qkv_bias=family.qkv_bias or has_bias("attn_q"),
        out_bias=has_bias("attn_output"),
        mlp_bias=has_bias("ffn_down"),  # `read_gguf` of families with experts sets it again
        qk_norm=family.qk_norm,
        tied_embeddings=HEAD_NAME not in file.tensors,
        rope=read_rope(file, stated, max_positions, stated.integer("attention.key_length", head_dim)),
        window=window if window < max_positions and sliding_layers else None,
        sliding_layers=sliding_layers,
    )
    return family.read_gguf(stated, spec)


def _read_family(file: GgufFile) -> Family:
    general = file.section("general.")
    if general.text("type", "model") != "model":
        raise general.wrong("type", "'model': choose the file that holds the model itself")
    architecture = general.text("architecture")
    if architecture not in BY_ARCHITECTURE:
        raise general.wrong("architecture", f"one of {', '.join(BY_ARCHITECTURE)}: choose a model of one of them")
    return BY_ARCHITECTURE[architecture]


def _refuse_unknown(keys: JsonFile, family: Family) -> None:
    for key, value in keys.values.items():
        if key in family.gguf_keys:
            continue
        if key in WITHOUT_EFFECT:
            if value != WITHOUT_EFFECT[key]:
                raise keys.wrong(key, f"{WITHOUT_EFFECT[key]!r}, the only supported value: choose another model")
        elif key not in KEYS:
            raise keys.wrong(key, "absent: forerun does not know its effect, so choose another model")


def _read_head_dim(keys: JsonFile, num_heads: int, family: Family) -> int:
    hidden_size = keys.integer("embedding_length")
    if not keys.has("attention.key_length") and hidden_size % num_heads:
        raise keys.wrong("embedding_length", f"a multiple of attention.head_count ({num_heads}) without a key_length")
    head_dim = keys.integer("attention.key_length", hidden_size // num_heads)
    if head_dim % 2:
        raise keys.wrong("attention.key_length", f"an even number: {head_dim} dimensions of a head cannot be rotated")
    whole = ("attention.value_length",) if family.partial_rotary else ("attention.value_length", ROTATED_KEY)
    for key in whole:
        if keys.integer(key, head_dim) != head_dim:
            raise keys.wrong(key, f"the {head_dim} dimensions of a head")
    scale = keys.number("attention.scale", 1 / sqrt(head_dim))
    if not family.scales_attention and abs(scale * sqrt(head_dim) - 1) > RELATIVE_TOLERANCE:
        raise keys.wrong("attention.scale", f"1 / sqrt({head_dim}), or absent")
    return head_dim


def _read_vocab_size(file: GgufFile) -> int:
    """Rows of the embedding. Rows beyond the last token are computed too, but no text uses them."""
    embedding = file.tensors.get(EMBEDDING_NAME)
    if embedding is None or len(embedding.shape) != 2:
        raise CheckpointError(f"{file.path} lacks the matrix {EMBEDDING_NAME}: fetch the file again")
    num_rows = embedding.shape[0]
    tokens = file.metadata.get(TOKENS_KEY, ())
    if not isinstance(tokens, tuple) or len(tokens) > num_rows:
        num_tokens = len(tokens) if isinstance(tokens, tuple) else 1
        raise CheckpointError(
            f"{file.path}: {TOKENS_KEY} names {num_tokens} tokens, but {EMBEDDING_NAME} has {num_rows} rows: fetch the "
            "file again"
        )
    return num_rows


def _read_divisors(file: GgufFile, name: str, num_pairs: int) -> tuple[float, ...]:
    tensor: StoredTensor | None = file.tensors.get(name)
    if tensor is None:
        return ()
    if tensor.dtype != "F32" or tensor.shape != (num_pairs,):
        raise CheckpointError(
            f"{file.path}: tensor {name!r} is {tensor.dtype} of shape {list(tensor.shape)}, but must be F32 "
            f"of shape [{num_pairs}]: fetch the file again"
        )
    divisors = unpack(f"<{num_pairs}f", read_bytes(tensor))
    if not all(MIN_NUMBER <= divisor <= MAX_DIVISOR for divisor in divisors):
        raise CheckpointError(
            f"{file.path}: tensor {name!r} holds {short(divisors)}, but must hold positive numbers: fetch the file "
            "again"
        )
    return divisors


def read_rope(file: GgufFile, keys: JsonFile, max_positions: int, head_dim: int) -> RopeSpec:
    """The rotation that a file's keys and divisors describe."""
    rotated = keys.integer(ROTATED_KEY, head_dim)
    if rotated > head_dim or rotated % 2:
        raise keys.wrong(ROTATED_KEY, f"an even number of the {head_dim} dimensions of a head")
    num_pairs = rotated // 2
    rotated_dims = None if rotated == head_dim else rotated
    theta = keys.number("rope.freq_base", DEFAULT_THETA, least=MIN_THETA)
    plain = RopeSpec(theta=theta, divisors=_read_divisors(file, DIVISORS_NAME, num_pairs), rotated_dims=rotated_dims)
    original = keys.integer("rope.scaling.original_context_length", max_positions)
    long_divisors = _read_divisors(file, LONG_NAME, num_pairs)
    factor = keys.number("rope.scaling.factor", keys.number("rope.scale_linear", 1.0))
    kind = keys.text("rope.scaling.type", "linear" if factor != 1.0 else "none")
    if long_divisors:
        return replace(
            plain,
            kind="longrope",
            divisors=_read_divisors(file, SHORT_NAME, num_pairs) or (1.0,) * num_pairs,
            long_divisors=long_divisors,
            original_max_positions=original,
            attention_factor=keys.number("rope.scaling.attn_factor", 1.0),
        )
    match kind:
        case "none":
            return plain
        case "linear":
            return replace(plain, kind="linear", factor=factor)
        case "yarn":
            return replace(
                plain,
                kind="yarn",
                factor=factor,
                original_max_positions=original,
                beta_fast=keys.number("rope.scaling.yarn_beta_fast", 32.0),
                beta_slow=keys.number("rope.scaling.yarn_beta_slow", 1.0),
                attention_factor=keys.number("rope.scaling.attn_factor", 1.0) * (1.0 + 0.1 * log(max(factor, 1.0))),
            )
        case _:
            raise keys.wrong("rope.scaling.type", "one of none, linear, yarn: choose another model")
