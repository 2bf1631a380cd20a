"""Names of the operations that a model has and Llama does not, so that kernels without them are refused early."""

from typing import Final

from forerun.core.mixers import GatedDeltaNet, Mamba2, ShortConvolution
from forerun.core.model_spec import ModelSpec

WINDOW: Final = "a sliding attention window"
QUERIES: Final = "scaled queries"
EMBEDDING: Final = "a scaled embedding"
NORMS: Final = "norms on the output of a sublayer"
WHOLE_NORMS: Final = "norms of queries and keys over all heads"
GELU: Final = "a tanh-GELU gate"
CAP: Final = "capped logits"
VALUE_NORM: Final = "normalised values"
LAYER_SCALE: Final = "a factor of each layer"
LAYER_INPUTS: Final = "embeddings for each layer"
BORROWING: Final = "keys and values shared between layers"
OTHER_HEADS: Final = "layers with heads of another size"
SINKS: Final = "attention sinks"
EXPERTS: Final = "experts"
CLAMPED: Final = "a clamped gate"
SHARED_EXPERT: Final = "a shared expert"
OUTPUT_GATE: Final = "an output gate of attention"
CONVOLUTION: Final = "short convolutions"
DELTA_NET: Final = "gated delta nets"
MAMBA: Final = "Mamba 2 layers"
SIGMOIDS: Final = "experts chosen by sigmoids"
UNGATED_SHARED: Final = "a shared expert without a gate"
DENSE_LAYERS: Final = "layers without experts beside others with them"
LONE_SUBLAYERS: Final = "layers of one sublayer"
SQUARED_RELU: Final = "a squared ReLU without a gate"


def mechanisms_of(spec: ModelSpec, max_length: int) -> frozenset[str]:
    """The mechanisms that texts of at most `max_length` tokens need; a longer window has no effect on them."""
    rope = spec.rope
    grows = rope.query_growth != 0.0 and max_length > rope.original_max_positions
    needed = {
        WINDOW: bool(spec.sliding_layers) and spec.window is not None and spec.window < max_length,
        QUERIES: spec.attention_scale is not None or grows,
        EMBEDDING: spec.embedding_scale != 1.0,
        NORMS: spec.norms != "before",
        WHOLE_NORMS: spec.qk_norm_whole,
        GELU: spec.gate == "gelu_tanh",
        CAP: spec.logit_cap is not None,
        VALUE_NORM: spec.value_norm,
        LAYER_SCALE: spec.layer_scale,
        LAYER_INPUTS: spec.layer_input_size > 0,
        BORROWING: spec.num_borrowing_layers > 0,
        OTHER_HEADS: spec.full_head_dim is not None or spec.full_num_kv_heads is not None,
        SINKS: spec.attention_sinks,
        EXPERTS: spec.num_experts > 0,
        CLAMPED: spec.gate == "clamped",
        SHARED_EXPERT: spec.shared_size > 0 and spec.gates_shared,
        UNGATED_SHARED: spec.shared_size > 0 and not spec.gates_shared,
        SIGMOIDS: spec.routing is not None,
        DENSE_LAYERS: bool(spec.dense_layers) and spec.num_experts > 0,
        LONE_SUBLAYERS: bool(spec.mlp_only or spec.mixer_only),
        SQUARED_RELU: spec.gate == "relu2",
        OUTPUT_GATE: spec.gates_attention,
        CONVOLUTION: isinstance(spec.mixer, ShortConvolution),
        DELTA_NET: isinstance(spec.mixer, GatedDeltaNet),
        MAMBA: isinstance(spec.mixer, Mamba2),
    }
    return frozenset(name for name, is_needed in needed.items() if is_needed)


def lacking(needed: frozenset[str], known: frozenset[str], kernels: str) -> str | None:
    """Why kernels with the mechanisms `known` cannot run a model that needs `needed`; None if they can."""
    missing = sorted(needed - known)
    return f"{kernels} do not compute {' or '.join(missing)}, which this model has" if missing else None
