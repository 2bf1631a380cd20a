"""The tensors of draft heads: their names and shapes, checked against the files."""

from collections.abc import Iterator, Mapping
from math import prod
from typing import Final

from forerun.checkpoints.heads.assistant import ORDER, assistant_shapes
from forerun.checkpoints.heads.config import Shapes
from forerun.checkpoints.huggingface.names import listed
from forerun.checkpoints.safetensors.header import ITEM_BYTES, WHOLE_BYTES, StoredTensor
from forerun.core.errors import CheckpointError
from forerun.core.head_spec import AssistantSpec, DFlashSpec, EagleSpec, HeadSpec
from forerun.core.json_file import short
from forerun.core.model_spec import ModelSpec
from forerun.model.block_types import BLOCKS

MAP = "d2t"  # of the head's tokens to the target's
# t2d marks the target's tokens in the map; a confidence head decides how far to draft, which our cost model does.
UNUSED = ("t2d", "confidence_head.proj.weight", "confidence_head.proj.bias")
TABLE = "embed_tokens.weight"
HEAD = "lm_head.weight"
SHIFTS = "markov_head.markov_w2.weight"  # of the logits, by the parent's code
WEIGHTS: Final = (*ITEM_BYTES, *BLOCKS)  # dtypes of weights


def canonical(name: str) -> str:
    """The name that all dialects share: EAGLE calls the first layer "midlayer", some exports begin with "model."."""
    name = name.removeprefix("model.")
    return f"layers.0.{name.removeprefix('midlayer.')}" if name.startswith("midlayer.") else name


def match_tensors(spec: HeadSpec, stored: Mapping[str, StoredTensor], where: str) -> dict[str, list[StoredTensor]]:
    """The tensors of a head by their names, after checking that it has all of them and no others.

    Trainers' own loaders ignore unknown names silently, and such a head would draft nonsense.

    Raises:
        CheckpointError: names the tensor.
    """
    if isinstance(spec, DFlashSpec) and spec.conv_group and spec.body.hidden_size % spec.conv_group:
        raise CheckpointError(
            f"{where}: conv_group_size is {spec.conv_group}, but must be a divisor of the head's hidden size, "
            f"{spec.body.hidden_size}: fetch the head again"
        )
    needed = dict(needed_shapes(spec))
    allowed = dict(allowed_shapes(spec, shapes_of(stored)))
    for name, tensor in stored.items():
        shape = needed.get(name, allowed.get(name))
        if name in UNUSED:
            continue
        if shape is None:
            raise CheckpointError(
                f"{where} holds tensor {short(tensor.name)}, whose effect forerun does not know in this kind of head: "
                "choose an EAGLE-3, DFlash, DFlash 2 or DSpark head, or an assistant of Gemma 4"
            )
        if tensor.shape != shape:
            raise CheckpointError(
                f"{where}: tensor {short(tensor.name)} has shape {list(tensor.shape)}, but must have {list(shape)} by "
                "the head's config: fetch both again"
            )
        dtypes = tuple(WHOLE_BYTES) if name in (MAP, ORDER) else WEIGHTS
        if tensor.dtype not in dtypes or not prod(shape):
            raise CheckpointError(
                f"{where}: tensor {short(tensor.name)} holds {prod(shape)} values of type {tensor.dtype}, but must "
                f"hold some of {', '.join(dtypes)}: fetch the head again"
            )
    missing = [name for name in (*needed, *dict(code_tables(spec))) if name not in stored]
    if missing:
        raise CheckpointError(f"{where} lacks tensor {listed(missing)}: fetch the head again")
    return {name: [tensor] for name, tensor in stored.items() if name not in (MAP, ORDER, *UNUSED)}


def shapes_of(stored: Mapping[str, StoredTensor]) -> Shapes:
    """The shape of every tensor."""
    return {name: tensor.shape for name, tensor in stored.items()}


def needed_shapes(spec: HeadSpec) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Every tensor that a head must have."""
    body = spec.body
    if isinstance(spec, AssistantSpec):
        yield from assistant_shapes(spec)
        return
    hidden = body.hidden_size
    num_in = spec.num_taps * spec.target_hidden_size
    yield "fc.weight", (hidden, num_in)
    yield "norm.weight", (hidden,)
    match spec:
        case EagleSpec():
            yield "layers.0.hidden_norm.weight", (hidden,)
            yield from _layer_shapes(body, "layers.0.", 2 * hidden)
            for idx in range(1, body.num_layers):
                yield from _layer_shapes(body, f"layers.{idx}.", hidden)
            if spec.norms_each:
                yield from ((f"fc_norm.{idx}.weight", (spec.target_hidden_size,)) for idx in range(spec.num_taps))
            if spec.norms_all:
                yield "input_norm.weight", (num_in,)
        case DFlashSpec():
            yield "hidden_norm.weight", (hidden,)
            for idx in range(body.num_layers):
                yield from _layer_shapes(body, f"layers.{idx}.", hidden)
                if spec.conv_kernel:
                    yield from _conv_shapes(spec, f"layers.{idx}.")
            if spec.pair_rank:
                yield "candidate_selector.hidden_projection.weight", (spec.pair_rank, hidden)
            if spec.markov_rank:
                yield SHIFTS, (body.vocab_size, spec.markov_rank)
            if spec.has_markov_gate:
                yield "markov_head.gate_proj.weight", (spec.markov_rank, hidden + spec.markov_rank)
                yield "markov_head.gate_proj.bias", (spec.markov_rank,)


def allowed_shapes(spec: HeadSpec, shapes: Shapes) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Tensors that a head may have: a map of its tokens, biases, an embedding and an output of its own, and tables of
    codes, with the stored number of rows."""
    body = spec.body
    yield HEAD, (body.vocab_size, body.hidden_size)
    if isinstance(spec, AssistantSpec):
        return
    yield MAP, (body.vocab_size,)
    for idx in range(body.num_layers):
        sizes = {"q": body.q_size, "k": body.kv_size, "v": body.kv_size, "o": body.hidden_size}
        yield from ((f"layers.{idx}.self_attn.{name}_proj.bias", (size,)) for name, size in sizes.items())
    yield "fc.bias", (body.hidden_size,)
    yield TABLE, (*shapes.get(TABLE, (0,))[:1], body.hidden_size)
    for name, size in code_tables(spec):
        yield name, (*shapes.get(name, (0,))[:1], size)


def code_tables(spec: HeadSpec) -> Iterator[tuple[str, int]]:
    """Tables of codes of the target's tokens, and the size of a code; the number of tokens depends on the target."""
    if isinstance(spec, DFlashSpec) and spec.pair_rank:
        yield from ((f"candidate_selector.{name}_codebook", spec.pair_rank) for name in ("predecessor", "successor"))
    if isinstance(spec, DFlashSpec) and spec.markov_rank:
        yield "markov_head.markov_w1.weight", spec.markov_rank


def _layer_shapes(body: ModelSpec, part: str, num_in: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden = body.hidden_size
    inner = body.intermediate_size
    yield part + "input_layernorm.weight", (hidden,)
    yield part + "post_attention_layernorm.weight", (hidden,)
    yield part + "self_attn.q_proj.weight", (body.q_size, num_in)
    yield part + "self_attn.k_proj.weight", (body.kv_size, num_in)
    yield part + "self_attn.v_proj.weight", (body.kv_size, num_in)
    yield part + "self_attn.o_proj.weight", (hidden, body.q_size)
    yield part + "mlp.gate_proj.weight", (inner, hidden)
    yield part + "mlp.up_proj.weight", (inner, hidden)
    yield part + "mlp.down_proj.weight", (hidden, inner)
    if body.qk_norm:
        yield part + "self_attn.q_norm.weight", (body.head_dim,)
        yield part + "self_attn.k_norm.weight", (body.head_dim,)


def _conv_shapes(spec: DFlashSpec, part: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden = spec.body.hidden_size
    for name in ("attention_conv", "mlp_conv"):
        yield f"{part}{name}.base_kernel", (2, spec.conv_kernel, hidden)
        yield f"{part}{name}.kernel_projection.weight", (2 * spec.conv_kernel * hidden // spec.conv_group, hidden)
