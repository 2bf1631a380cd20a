"""What a pass can leave out: names, order, text and weight."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from forerun.core.errors import ConfigError
from forerun.core.sublayers import (
    ATTENTION,
    MLP,
    NOTHING,
    SkipSet,
    absent_sublayers,
    all_sublayers,
    every_other_layer,
    kept_share,
    read_skips,
    skippable,
    write_skips,
)
from forerun.model.program import build_program
from tests.tiny import plain_spec, random_weights

SKIP_SETS = st.frozensets(st.tuples(st.integers(0, 99), st.sampled_from([ATTENTION, MLP])), max_size=30)


@pytest.mark.parametrize(
    ("num_layers", "layers"),
    [(1, []), (2, []), (3, [1]), (4, [1]), (5, [1, 3]), (6, [1, 3]), (40, list(range(1, 38, 2)))],
)
def test_every_other_layer_is_odd_and_neither_first_nor_last(num_layers: int, layers: list[int]) -> None:
    assert every_other_layer(num_layers) == {(layer, kind) for layer in layers for kind in (ATTENTION, MLP)}


def test_what_layers_lack_is_not_skipped() -> None:
    spec = plain_spec(num_layers=5, mlp_only=(1,), mixer_only=(2, 3))
    absent = absent_sublayers(spec)
    assert skippable(5, absent) == ((1, MLP), (2, ATTENTION), (3, ATTENTION))
    assert every_other_layer(5, absent) == {(1, MLP), (3, ATTENTION)}


@given(skipped=SKIP_SETS)
def test_a_set_is_read_as_it_was_written(skipped: SkipSet) -> None:
    assert read_skips(write_skips(skipped)) == skipped


def test_the_text_is_short_and_sorted() -> None:
    assert write_skips(frozenset({(11, MLP), (4, MLP), (5, ATTENTION), (3, ATTENTION)})) == "attention:3,5;mlp:4,11"
    assert write_skips(frozenset({(4, MLP)})) == "mlp:4"
    assert write_skips(NOTHING) == ""
    assert read_skips("mlp:4;attention:3,5;") == {(3, ATTENTION), (5, ATTENTION), (4, MLP)}


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("heads:3", "unknown kind"),
        ("3,5", "unknown kind"),
        ("attention", "invalid literal for int"),
        ("attention:", "invalid literal for int"),
        ("attention:3,", "invalid literal for int"),
        ("attention:3;mlp:four", "'four'"),
        ("attention:3:4", "'3:4'"),
        ("mlp:1.5", "'1.5'"),
        (" ; ", "unknown kind"),
    ],
)
def test_a_text_that_is_no_set_is_refused_with_an_example(text: str, seen: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_skips(text)
    message = str(caught.value)
    assert message.startswith(f"skipped sublayers {text!r} must look like attention:3,5;mlp:4 (")
    assert seen in message


@pytest.mark.parametrize("is_tied", [True, False])
def test_the_kept_share_is_that_of_the_weights_a_pass_reads(is_tied: bool) -> None:
    """Counted tensor by tensor, norms and biases aside, which are next to nothing."""
    spec = plain_spec(num_layers=4, tied_embeddings=is_tied, qkv_bias=False, out_bias=False, mlp_bias=False)
    weights = random_weights(spec, torch.Generator().manual_seed(0))
    linears = [op for op in build_program(spec) if op.kind in ("linear", "linear_add")]
    tied = weights["embedding.weight"]
    sizes = {op.weights: (op.sublayer, weights.get(f"{op.weights}.weight", tied).numel()) for op in linears}
    whole = sum(size for _, size in sizes.values())
    for skipped in (NOTHING, every_other_layer(4), frozenset({(2, MLP)}), frozenset(all_sublayers(4))):
        kept = sum(size for sublayer, size in sizes.values() if sublayer not in skipped)
        assert kept_share(spec, skipped) == pytest.approx(kept / whole)


def test_shares_of_parts_add_up_and_a_whole_pass_reads_all() -> None:
    spec = plain_spec(num_layers=5)
    assert kept_share(spec, NOTHING) == 1.0
    parts = sum(1.0 - kept_share(spec, frozenset({part})) for part in all_sublayers(5))
    assert 1.0 - kept_share(spec, frozenset(all_sublayers(5))) == pytest.approx(parts)
    assert 0.0 < kept_share(spec, frozenset(all_sublayers(5))) < 1.0, "the head is always read"
