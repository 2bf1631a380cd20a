"""The device executor computes what transformers computes, for what sets families apart."""

import pytest
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GraniteConfig,
    GraniteForCausalLM,
    Olmo2Config,
    Olmo2ForCausalLM,
    SmolLM3Config,
    SmolLM3ForCausalLM,
)

from forerun.backends.gpu.backend import TRITON
from tests.golden.families import FAMILIES, LINEAR_ROPE, Family, llama, qwen2
from tests.golden.test_logits import MAX_ERROR, build_runner, random_prompt, reference_logits
from tests.marks import rest_slow

pytest.importorskip("triton")
pytestmark = pytest.mark.usefixtures("emulation")

HEADS = {"num_attention_heads": 3, "num_key_value_heads": 1, "num_hidden_layers": 2}  # of 16, as the kernels know them
GEMMA3 = {
    "head_dim": 16, "query_pre_attn_scalar": 21, "sliding_window": 9,
    "layer_types": ["sliding_attention", "full_attention"],
}  # fmt: skip
GRANITE = {"embedding_multiplier": 3.5, "attention_multiplier": 0.2, "residual_multiplier": 0.5, "logits_scaling": 3.0}
QWEN3 = FAMILIES["qwen3"]
CASES = {
    "llama3.2": FAMILIES["llama3.2"],
    "qwen3": QWEN3,
    "deepseek_coder": llama(**LINEAR_ROPE, **HEADS),
    "llama_biased": llama(attention_bias=True, mlp_bias=True, **HEADS),
    "qwen2": qwen2(rms_norm_eps=1e-6, **HEADS),
    "gemma3": Family(config=Gemma3TextConfig, model=Gemma3ForCausalLM, changes={**HEADS, **GEMMA3}),
    "granite": Family(config=GraniteConfig, model=GraniteForCausalLM, changes={**HEADS, **GRANITE}),
    "olmo2": Family(config=Olmo2Config, model=Olmo2ForCausalLM, changes=HEADS),
    "smollm3": Family(config=SmolLM3Config, model=SmolLM3ForCausalLM, changes={**HEADS, "no_rope_layer_interval": 2}),
}


@pytest.mark.parametrize("family", rest_slow(CASES.values(), 1), ids=list(CASES))
def test_logits_equal_those_of_transformers(family: Family, tmp_path_factory: pytest.TempPathFactory) -> None:
    golden = family.save(tmp_path_factory.mktemp("family"))
    prompt = random_prompt(golden, 0)
    expected = reference_logits(golden, prompt)
    runner = build_runner(golden, TRITON)
    wide = runner.extend(prompt[:40], num_logit_rows=40)
    narrow = runner.extend(prompt[40:], num_logit_rows=8)
    assert (wide - expected[:40]).abs().max() <= MAX_ERROR
    assert (narrow - expected[40:]).abs().max() <= MAX_ERROR
