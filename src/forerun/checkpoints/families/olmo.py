"""OLMo 2 and 3: norms only on the output of sublayers, queries and keys normalised over all heads; OLMo 3 has sliding
layers, whose rotation is not scaled."""

from dataclasses import replace
from functools import partial
from typing import Final

from forerun.checkpoints.families.family import Family, all_but_every, typed_or_all_but_every
from forerun.core.json_file import JsonFile
from forerun.core.model_spec import ModelSpec, RopeSpec

PERIOD: Final = 4  # one full layer after three with a window
NORMS: Final = {"attention_post_norm": "post_attention_layernorm", "mlp_post_norm": "post_feedforward_layernorm"}


def read(_: JsonFile, spec: ModelSpec) -> ModelSpec:
    sliding_rope = spec.sliding_rope or RopeSpec(theta=spec.rope.theta) if spec.sliding_layers else None
    return replace(spec, norms="after", wide_norms=True, qk_norm_whole=True, sliding_rope=sliding_rope)


def read_gguf(keys: JsonFile, spec: ModelSpec) -> ModelSpec:
    """A file's `attn_factor` is the whole attention factor of the folder that it was made from."""
    factor = keys.number("rope.scaling.attn_factor", spec.rope.attention_factor)
    return read(keys, replace(spec, rope=replace(spec.rope, attention_factor=factor)))


def gguf_sliding(keys: JsonFile) -> tuple[int, ...]:
    return all_but_every(PERIOD, keys.integer("block_count")) if keys.has("attention.sliding_window") else ()


OLMO2: Final = Family(
    name="olmo2",
    architecture="olmo2",  # of OLMo 3 too, whose files name a window
    attention_bias=True,
    kv_heads_required=False,
    norms=NORMS,
    gguf_sliding=gguf_sliding,
    read=read,
    read_gguf=read_gguf,
    gguf_keys=("attention.sliding_window_pattern",),
)
OLMO3: Final = Family(
    name="olmo3",
    architecture=None,
    defaults={"rope_theta": 500_000.0, "sliding_window": 4096},
    attention_bias=True,
    kv_heads_required=False,
    norms=NORMS,
    sliding=partial(typed_or_all_but_every, period=PERIOD),
    read=read,
)
