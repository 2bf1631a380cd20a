"""Names and shapes of the tensors that several kinds of draft heads have, and which targets they fit."""

from collections.abc import Iterator, Sequence
from typing import Final

from forerun.core.errors import CheckpointError, VocabularyError
from forerun.core.model_spec import ModelSpec
from forerun.drafting.heads.config import FC
from forerun.drafting.heads.kind import HeadSpec, Shape, Shapes, StoredHead
from forerun.drafting.heads.vocabulary_map import MAP

TABLE: Final = "embed_tokens.weight"
OUTPUT: Final = "lm_head.weight"


def common_shapes(spec: HeadSpec) -> Iterator[tuple[str, Shape]]:
    """What every head with features joined by `fc` must have, besides its layers."""
    hidden = spec.body.hidden_size
    yield FC, (hidden, spec.num_taps * spec.target_hidden_size)
    yield "norm.weight", (hidden,)


def layer_shapes(body: ModelSpec, part: str, num_in: int) -> Iterator[tuple[str, Shape]]:
    """The tensors of a layer whose attention reads `num_in` numbers."""
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


def optional_shapes(spec: HeadSpec, shapes: Shapes) -> Iterator[tuple[str, Shape]]:
    """What such a head may have: a map of its tokens, biases, an embedding and an output of its own, and tables of
    codes, with the stored number of rows."""
    body = spec.body
    yield OUTPUT, (body.vocab_size, body.hidden_size)
    yield MAP, (body.vocab_size,)
    for idx in range(body.num_layers):
        sizes = {"q": body.q_size, "k": body.kv_size, "v": body.kv_size, "o": body.hidden_size}
        yield from ((f"layers.{idx}.self_attn.{name}_proj.bias", (size,)) for name, size in sizes.items())
    yield "fc.bias", (body.hidden_size,)
    yield TABLE, (*shapes.get(TABLE, (0,))[:1], body.hidden_size)
    for name, size in spec.code_tables():
        yield name, (*shapes.get(name, (0,))[:1], size)


def num_table_rows(stored: StoredHead, target: ModelSpec) -> int:
    """The tokens of the embedding: its own, or else the target's."""
    return stored.tensors[TABLE][0].shape[0] if TABLE in stored.tensors else target.vocab_size


def require_tokens(stored: StoredHead, target: ModelSpec, target_name: str, *, by_output: Sequence[str] = ()) -> None:
    """Refuse a target with other tokens than such a head's tables, map and outputs are for, or whose embedding or
    output it cannot use.

    Args:
        by_output: names of tensors with a row for each of its outputs.

    Raises:
        VocabularyError, CheckpointError: says what differs.
    """
    spec = stored.spec
    rows = stored.tensors
    if spec.body.hidden_size != target.hidden_size and not {TABLE, OUTPUT} <= rows.keys():
        raise CheckpointError(
            f"the head {stored.name} has rows of {spec.body.hidden_size} and lacks an embedding or an output of its "
            f"own, but those of {target_name} have {target.hidden_size}: choose the head of this model"
        )
    table = num_table_rows(stored, target)
    if table < target.vocab_size:
        raise VocabularyError(
            f"the head {stored.name} has an embedding of {table} tokens, but {target_name} has {target.vocab_size} "
            "tokens: choose the head of this model"
        )
    num_outputs = rows[OUTPUT][0].shape[0] if OUTPUT in rows else target.vocab_size
    num_coded = max(num_outputs, target.vocab_size)
    fewest = min((rows[name][0].shape[0] for name, _ in spec.code_tables()), default=num_coded)
    if fewest < num_coded:
        raise VocabularyError(
            f"the head {stored.name} has codes of {fewest} tokens, but {target_name} has {target.vocab_size} tokens "
            f"and the head {num_outputs} outputs: choose the head of this model"
        )
    found = [name for name in (MAP, *by_output) if name in stored.ids or name in rows]
    if found and spec.body.vocab_size != num_outputs:
        raise VocabularyError(
            f"the head {stored.name} has {spec.body.vocab_size} rows of {found[0]}, but the output, that of "
            f"{target_name}, has {num_outputs}: choose the head of this model"
        )
    ids = stored.target_ids()
    if ids is not None and int(ids[-1]) >= target.vocab_size:
        raise VocabularyError(
            f"the head {stored.name} drafts token {int(ids[-1])}, but {target_name} has only {target.vocab_size} "
            "tokens: choose the head of this model"
        )
