"""llama.cpp writes what our engine writes: so the conversion to GGUF is right, and the guessing costs no token."""

from dataclasses import replace
from pathlib import Path

import pytest

from forerun import Engine, EngineConfig, NoDrafter, SamplingParams
from forerun.core.model_spec import WeightFormat
from tests.bench.peers.pairs import MAX_LENGTH, Pair, check_peer, opened, skip_if_absent
from tests.text.tiny_tokenizers import write_byte_level

SIZES = {"vocab_size": 320, "max_position_embeddings": 512}
QUICK = ("qwen2", "llama3.2")


def test_plain_decoding_writes_our_ids_one_at_a_time(pair: Pair) -> None:
    with opened("llama_cpp", pair.plan) as peer:
        assert set(check_peer(peer, pair)) == {1}


@pytest.mark.parametrize("name", ["llama_cpp_draft", "llama_cpp_lookup"])
def test_guessing_writes_our_ids_and_tells_the_tokens_of_each_round(pair: Pair, name: str) -> None:
    with opened(name, pair.plan) as peer:
        assert max(check_peer(peer, pair)) > 1


def test_a_draft_guesses_as_many_tokens_as_it_is_told(pair: Pair) -> None:
    with opened("llama_cpp_draft", pair.plan, num_pred_tokens=2, p_min=0.0) as peer:
        assert max(check_peer(peer, pair)) == 3


@pytest.mark.parametrize(
    "family",
    [
        pytest.param(name, marks=() if name in QUICK else pytest.mark.slow)
        for name in (*QUICK, "llama2", "llama_biased", "qwen2.5", "qwen2_yarn", "qwen3", "mistral", "deepseek_coder")
    ],
)
def test_every_family_is_converted_so_that_its_text_is_ours(pair: Pair, family: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    skip_if_absent("llama_cpp", pair.plan)
    from tests.golden.families import FAMILIES

    folder = tmp_path / "model"
    replace(FAMILIES[family], changes=FAMILIES[family].changes | SIZES).save(folder)
    write_byte_level(folder)
    prompts = [tuple(range(start, start + 40)) for start in (5, 90, 200)]
    params = SamplingParams(max_new_tokens=48, ignore_eos=True)
    config = EngineConfig(
        target=str(folder), drafter=NoDrafter(), dtype="float32", max_length=MAX_LENGTH, num_threads=1
    )
    with Engine(config) as engine:
        expected = [engine.generate(prompt, params).token_ids for prompt in prompts]
    with opened("llama_cpp", replace(pair.plan, target=str(folder), cache=str(tmp_path))) as peer:
        assert [peer.write(prompt, params).token_ids for prompt in prompts] == expected
    assert len({token_id for text in expected for token_id in text}) > 12, (
        "the text is stuck in a rut, so equality says little"
    )


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_begins_as_float32_does(pair: Pair, dtype: str) -> None:
    with opened("llama_cpp", replace(pair.plan, dtype=dtype)) as peer:
        texts = [peer.write(prompt, SamplingParams(max_new_tokens=4, ignore_eos=True)) for prompt in pair.prompts]
    assert [turn.token_ids for turn in texts] == [expected[:4] for expected in pair.expected]


@pytest.mark.parametrize("weight_format", ["int8", "int4"])
def test_quantised_weights_begin_as_float32_does(pair: Pair, weight_format: WeightFormat) -> None:
    with opened("llama_cpp", replace(pair.plan, weight_format=weight_format)) as peer:
        texts = [peer.write(prompt, SamplingParams(max_new_tokens=4, ignore_eos=True)) for prompt in pair.prompts]
    num_equal = sum(turn.token_ids == expected[:4] for turn, expected in zip(texts, pair.expected, strict=True))
    assert num_equal >= (2 if weight_format == "int8" else 1), texts
