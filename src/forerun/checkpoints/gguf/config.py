"""Convert a GGUF file's metadata to a `ModelSpec`. Keys that need unsupported computation are refused by name.

Source: llama.cpp's keys (gguf-py/gguf/constants.py), and how its models of these architectures use them.
"""

from math import log, sqrt
from struct import unpack
from typing import Final

from forerun.checkpoints.families.family import Family
from forerun.checkpoints.families.known import BY_ARCHITECTURE
from forerun.checkpoints.gguf.header import GgufFile
from forerun.checkpoints.huggingface.config import MAX_LAYERS, MIN_POSITIONS
from forerun.checkpoints.huggingface.rope import DEFAULT_THETA, MIN_THETA
from forerun.checkpoints.safetensors.header import StoredTensor
from forerun.checkpoints.safetensors.stored_bytes import read_bytes
from forerun.core.errors import CheckpointError
from forerun.core.json_file import MAX_NUMBER, MIN_NUMBER, JsonFile, short
from forerun.core.model_spec import ModelSpec, RopeSpec

EMBEDDING_NAME: Final = "token_embd.weight"
HEAD_NAME: Final = "output.weight"
DIVISORS_NAME: Final = "rope_freqs.weight"
TOKENS_KEY: Final = "tokenizer.ggml.tokens"
KEYS: Final = (
    "block_count", "context_length", "embedding_length", "feed_forward_length", "vocab_size", "attention.head_count",
    "attention.head_count_kv", "attention.key_length", "attention.value_length", "attention.layer_norm_rms_epsilon",
    "attention.scale", "attention.sliding_window", "rope.dimension_count", "rope.freq_base", "rope.scale_linear",
    "rope.scaling.type", "rope.scaling.factor", "rope.scaling.original_context_length", "rope.scaling.attn_factor",
    "rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow", "rope.scaling.finetuned",
)  # fmt: skip
# Keys that some converters write into files of any architecture, with the value that has no effect.
WITHOUT_EFFECT: Final = {
    "expert_count": 0,
    "expert_used_count": 0,
    "pooling_type": 0,
    "attention.causal": True,
    "attention.max_alibi_bias": 0.0,
    "attention.clamp_kqv": 0.0,
    "use_parallel_residual": False,
    "tensor_data_layout": "Meta AI original pth",
}
RELATIVE_TOLERANCE: Final = 1e-6  # of a scale, which is stored as a float32


def read_model_spec(file: GgufFile) -> ModelSpec:
    """The architecture of a model.

    As in llama.cpp, a layer has a bias if the file holds one, and the head is the embedding if the file holds no head.

    Raises:
        CheckpointError: a key is missing or out of range, or requires something forerun does not compute.
    """
    family = _read_family(file)
    keys = file.section(f"{family.architecture}.")
    _refuse_unknown(keys)
    num_heads = keys.integer("attention.head_count")
    num_kv_heads = keys.integer("attention.head_count_kv", num_heads)
    if num_heads % num_kv_heads:
        raise keys.wrong("attention.head_count_kv", f"a divisor of attention.head_count ({num_heads})")
    max_positions = keys.integer("context_length", least=MIN_POSITIONS)
    window = keys.integer("attention.sliding_window", max_positions, least=MIN_POSITIONS)
    head_dim = _read_head_dim(keys, num_heads)
    return ModelSpec(
        family=family.name,
        num_layers=keys.integer("block_count", most=MAX_LAYERS),
        hidden_size=keys.integer("embedding_length"),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        intermediate_size=keys.integer("feed_forward_length"),
        vocab_size=_read_vocab_size(file),
        max_positions=min(max_positions, window),
        norm_eps=keys.number("attention.layer_norm_rms_epsilon"),
        qkv_bias=family.qkv_bias or "blk.0.attn_q.bias" in file.tensors,
        out_bias="blk.0.attn_output.bias" in file.tensors,
        mlp_bias="blk.0.ffn_down.bias" in file.tensors,
        qk_norm=family.qk_norm,
        tied_embeddings=HEAD_NAME not in file.tensors,
        rope=_read_rope(keys, max_positions, _read_divisors(file, head_dim)),
        window=window if window < max_positions else None,
    )


def _read_family(file: GgufFile) -> Family:
    general = file.section("general.")
    if general.text("type", "model") != "model":
        raise general.wrong("type", "'model': choose the file that holds the model itself")
    architecture = general.text("architecture")
    if architecture not in BY_ARCHITECTURE:
        raise general.wrong("architecture", f"one of {', '.join(BY_ARCHITECTURE)}: choose a model of one of them")
    return BY_ARCHITECTURE[architecture]


def _refuse_unknown(keys: JsonFile) -> None:
    for key, value in keys.values.items():
        if key in WITHOUT_EFFECT:
            if value != WITHOUT_EFFECT[key]:
                raise keys.wrong(key, f"{WITHOUT_EFFECT[key]!r}, the only supported value: choose another model")
        elif key not in KEYS:
            raise keys.wrong(key, "absent: forerun does not know its effect, so choose another model")


def _read_head_dim(keys: JsonFile, num_heads: int) -> int:
    hidden_size = keys.integer("embedding_length")
    if not keys.has("attention.key_length") and hidden_size % num_heads:
        raise keys.wrong("embedding_length", f"a multiple of attention.head_count ({num_heads}) without a key_length")
    head_dim = keys.integer("attention.key_length", hidden_size // num_heads)
    if head_dim % 2:
        raise keys.wrong("attention.key_length", f"an even number: {head_dim} dimensions of a head cannot be rotated")
    for key in ("attention.value_length", "rope.dimension_count"):
        if keys.integer(key, head_dim) != head_dim:
            raise keys.wrong(key, f"the {head_dim} dimensions of a head")
    scale = keys.number("attention.scale", 1 / sqrt(head_dim))
    if abs(scale * sqrt(head_dim) - 1) > RELATIVE_TOLERANCE:
        raise keys.wrong("attention.scale", f"1 / sqrt({head_dim}), or absent")
    return head_dim


def _read_vocab_size(file: GgufFile) -> int:
    """Rows of the embedding. Rows beyond the last token are computed too, but no text uses them."""
    embedding = file.tensors.get(EMBEDDING_NAME)
    if embedding is None or len(embedding.shape) != 2:
        raise CheckpointError(f"{file.path} lacks the matrix {EMBEDDING_NAME}: fetch the file again")
    num_rows, tokens = embedding.shape[0], file.metadata.get(TOKENS_KEY, ())
    if not isinstance(tokens, tuple) or len(tokens) > num_rows:
        num_tokens = len(tokens) if isinstance(tokens, tuple) else 1
        raise CheckpointError(
            f"{file.path}: {TOKENS_KEY} names {num_tokens} tokens, but {EMBEDDING_NAME} has {num_rows} rows: fetch the "
            "file again"
        )
    return num_rows


def _read_divisors(file: GgufFile, head_dim: int) -> tuple[float, ...]:
    tensor: StoredTensor | None = file.tensors.get(DIVISORS_NAME)
    if tensor is None:
        return ()
    if tensor.dtype != "F32" or tensor.shape != (head_dim // 2,):
        raise CheckpointError(
            f"{file.path}: tensor {DIVISORS_NAME!r} is {tensor.dtype} of shape {list(tensor.shape)}, but must be F32 "
            f"of shape [{head_dim // 2}]: fetch the file again"
        )
    divisors = unpack(f"<{head_dim // 2}f", read_bytes(tensor))
    if not all(MIN_NUMBER <= divisor <= MAX_NUMBER for divisor in divisors):
        raise CheckpointError(
            f"{file.path}: tensor {DIVISORS_NAME!r} holds {short(divisors)}, but must hold positive numbers: fetch the "
            "file again"
        )
    return divisors


def _read_rope(keys: JsonFile, max_positions: int, divisors: tuple[float, ...]) -> RopeSpec:
    theta = keys.number("rope.freq_base", DEFAULT_THETA, least=MIN_THETA)
    factor = keys.number("rope.scaling.factor", keys.number("rope.scale_linear", 1.0))
    match keys.text("rope.scaling.type", "linear" if factor != 1.0 else "none"):
        case "none":
            return RopeSpec(theta=theta, divisors=divisors)
        case "linear":
            return RopeSpec(theta=theta, kind="linear", factor=factor, divisors=divisors)
        case "yarn":
            return RopeSpec(
                theta=theta,
                kind="yarn",
                factor=factor,
                original_max_positions=keys.integer("rope.scaling.original_context_length", max_positions),
                beta_fast=keys.number("rope.scaling.yarn_beta_fast", 32.0),
                beta_slow=keys.number("rope.scaling.yarn_beta_slow", 1.0),
                attention_factor=keys.number("rope.scaling.attn_factor", 1.0) * (1.0 + 0.1 * log(max(factor, 1.0))),
                divisors=divisors,
            )
        case _:
            raise keys.wrong("rope.scaling.type", "one of none, linear, yarn: choose another model")
