"""What a device can do at best, and what a step must read."""

from dataclasses import replace
from math import isfinite

from forerun.core.model_spec import ModelSpec
from forerun_lab.bench.run.ceilings import bytes_per_step, measure_ceilings

SPEC = ModelSpec(
    family="llama",
    num_layers=2,
    hidden_size=8,
    num_heads=2,
    num_kv_heads=1,
    head_dim=4,
    intermediate_size=16,
    vocab_size=10,
    max_positions=64,
    norm_eps=1e-5,
)
# A layer: qkv 16 x 8, attention_out 8 x 8, gate_up 32 x 8, mlp_out 8 x 16, two norms of 8.
LAYER = 128 + 64 + 256 + 128 + 16
# Keys and values of 4 elements in 2 layers.
CACHE_OF_A_TOKEN = 2 * 4 * 2


def test_a_step_reads_the_weights_one_embedding_row_and_the_cache() -> None:
    num_elements = 2 * LAYER + 8 + 10 * 8 + 8 + 100 * CACHE_OF_A_TOKEN
    assert bytes_per_step(SPEC, 2, 100) == 2 * num_elements
    assert bytes_per_step(SPEC, 4, 100) == 4 * num_elements


def test_a_table_that_is_the_head_too_is_read_once() -> None:
    tied = replace(SPEC, tied_embeddings=True)
    assert bytes_per_step(tied, 2, 0) == 2 * (2 * LAYER + 8 + 10 * 8)


def test_quantised_linears_are_read_with_their_scales_and_the_rest_as_it_is() -> None:
    rest = 4 * (2 * 16 + 8) + 4 * 8 + 4 * 100 * CACHE_OF_A_TOKEN  # norms, an embedding row, the cache
    values = 2 * (128 + 64 + 256 + 128)
    outputs = 2 * (16 + 8 + 32 + 8)
    head_of_8_bits = 10 * (8 + 4)
    assert bytes_per_step(SPEC, 4, 100, "int8") == rest + values + 4 * outputs + head_of_8_bits
    assert bytes_per_step(SPEC, 4, 100, "int4") == rest + values // 2 + 5 * outputs + head_of_8_bits


def test_ceilings_are_measured() -> None:
    ceilings = measure_ceilings(budget_s=0.05, cache_bytes=1 << 20)
    spreads = [ceilings.read, ceilings.copy, ceilings.cached_read]
    assert all(isfinite(value.high) and 0.0 < value.low <= value.median <= value.high for value in spreads)
