"""An architecture's sizes and options: all values that the model needs from a checkpoint's config.json."""

from dataclasses import dataclass, replace
from math import sqrt
from typing import Final, Literal

from forerun.core.mixers import GatedDeltaNet, Mamba2, Mixer, ShortConvolution, ring_size, snapshot_size

RopeKind = Literal["default", "linear", "llama3", "yarn", "longrope", "proportional"]
NormPlaces = Literal["before", "around", "after"]  # of a sublayer
Gate = Literal["silu", "gelu_tanh", "clamped", "relu2"]
WeightFormat = Literal["plain", "int8", "int4"]  # of the weights of linear layers
CacheFormat = Literal[
    "model", "int8"
]  # of keys and values: the dtype of the model, or 8 bits with a scale for each row of a head
SCALE_BYTES: Final = 4  # behind the codes of a row in 8 bits
# Of layers with a window, on a CPU: a text can be cut back by this many tokens and resumed, as for another answer.
WINDOW_MARGIN: Final = 1024
STATE_ELEMENT: Final = 4  # bytes of a state's values, which are float32 or wider
WINDOW_STEP: Final = 256  # slots whose memory is returned at once, in about 10 us a layer; a prefill pass fills as many


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeSpec:
    """Rotary position embedding.

    `linear` divides positions by `factor` (DeepSeek-coder). `llama3` stretches low frequencies only (Llama 3.1 and
    later): wavelengths above original_max_positions / low_freq_factor are divided by `factor`, those below
    original_max_positions / high_freq_factor stay, those between are blended.

    `yarn` (arXiv 2309.00071) is similar: dimensions that rotate fewer than `beta_slow` times in original_max_positions
    are divided, those that rotate more than `beta_fast` times are unchanged. Cosines and sines are multiplied by
    `attention_factor`, which sharpens attention. `truncate` rounds the bounds to whole dimensions.

    `longrope` (arXiv 2402.13753) divides the frequencies by `divisors` if the longest text has at most
    original_max_positions, else by `long_divisors`; see `for_length`. `proportional` (Gemma 4) rotates only the first
    `rotated_dims` / 2 pairs of a head, by the frequencies of the whole head.

    `divisors`, one for each pair of dimensions, divide the frequencies of any kind; GGUF files store llama3's this way.

    Args:
        rotated_dims: dimensions of a head that are rotated; the others stay as they are. None: all of them.
        query_growth: beta of Llama 4's scaling: a query at position p is multiplied by
            1 + beta ln(1 + floor(p / original_max_positions)).
    """

    theta: float = 10_000.0
    kind: RopeKind = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_positions: int = 8192
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float = 1.0
    divisors: tuple[float, ...] = ()
    long_divisors: tuple[float, ...] = ()
    rotated_dims: int | None = None
    query_growth: float = 0.0

    def for_length(self, max_length: int) -> "RopeSpec":
        """The rotation of texts of at most this many tokens.

        `longrope` changes every earlier key when a text outgrows original_max_positions, so the factors are chosen
        once, by the longest text that may be written, and not for every text.
        """
        is_long = max_length > self.original_max_positions
        divisors = self.long_divisors if is_long and self.long_divisors else self.divisors
        return replace(self, divisors=divisors, long_divisors=())


@dataclass(frozen=True, slots=True, kw_only=True)
class SigmoidRouting:
    """A choice of experts by the sigmoids of the router's scores, which are the experts' shares too.

    Args:
        has_correction: a number for each expert is added to its sigmoid for the choice alone.
        is_normalised: the shares of a token are divided by their sum plus `eps`.
        scale: factor of the shares.
    """

    has_correction: bool = True
    is_normalised: bool = True
    eps: float = 0.0
    scale: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """One decoder-only transformer. The defaults are Llama's.

    Args:
        max_positions: most tokens of a text.
        qk_norm: each head's queries and keys are normalised before the rotation.
        qk_norm_whole: queries and keys are normalised over all heads together (OLMo 2), not head by head.
        qk_norm_totals: for a rank's part, how many elements of queries and of keys of all ranks these norms run over;
            None: the model is whole.
        rope: the rotation of layers without another one.
        window: size of the sliding attention window in tokens: a token sees itself and window - 1 tokens before it.
            None: no layer has a window.
        sliding_layers: layers whose attention has the window.
        sliding_rope: the rotation of these layers; None: `rope`.
        unrotated_layers: layers without any rotation (NoPE).
        norms: where a sublayer has them: before it (Llama), before it and on its output (Gemma 3), or on its output
            alone (OLMo 2).
        wide_norms: norms multiply by their weight in float32 and round last, whatever the dtype.
        gate: the activation of the MLP's gate; "clamped" is gate sigmoid(1.702 gate) (up + 1), with the gate at most 7
            and up within [-7, 7] (gpt-oss). "relu2" has no gate: the activation is relu(up)^2 (Nemotron-H).
        attention_sinks: each query head has one more score in its softmax, whose share goes to no value.
        num_experts: MLPs of a layer, of which each token goes through `num_chosen_experts`: those to which a linear
            layer, the router, gives the highest scores. Their outputs are added up by the softmax of these scores.
            0: a layer has one MLP for all tokens. `intermediate_size` is that of an expert.
        routing: how experts are chosen and weighted instead, by sigmoids.
        shared_size: intermediate size of one more MLP, which every token goes through besides its experts. 0: there is
            none.
        gates_shared: its output is multiplied by the sigmoid of a gate, which is a product of the input.
        dense_layers: layers with one MLP of size `dense_size` in a model whose others have experts.
        attention_scale: factor of the products of queries and keys; None: 1 / sqrt(head_dim).
        embedding_scale: factor of the embedding where it enters the residual stream.
        rounds_embedding_scale: this factor is rounded to the dtype first (Gemma).
        logit_divisor: the logits are divided by it.
        logit_cap: the logits become cap tanh(logits / cap); None: they are not capped.
        value_norm: each head's values are normalised, without a weight.
        layer_scale: the residual stream is multiplied by a number after each layer.
        layer_input_size: numbers of each token's embedding for each layer, besides the one that enters the first layer
            (Gemma 4 E2B); 0: there are none.
        num_borrowing_layers: the last layers, which attend to the keys and values of the last layer of their kind
            before them, and have none of their own.
        has_wide_borrowers: their MLPs have twice the intermediate size.
        full_head_dim, full_num_kv_heads: heads of the layers without a window; None: as in the others.
        gates_attention: each head's output is multiplied by the sigmoid of a gate, which is a product of the input.
        convolution, delta_net, mamba: what the layers `mixer_layers` have in place of attention, one of the three; they
            have no keys and values.
        mlp_only: layers that have neither attention nor a mixer.
        mixer_only: layers that have no MLP.
    """

    family: str
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    max_positions: int
    norm_eps: float
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    tied_embeddings: bool = False
    rope: RopeSpec = RopeSpec()
    window: int | None = None
    qk_norm_whole: bool = False
    qk_norm_totals: tuple[int, int] | None = None
    sliding_layers: tuple[int, ...] = ()
    sliding_rope: RopeSpec | None = None
    unrotated_layers: tuple[int, ...] = ()
    norms: NormPlaces = "before"
    wide_norms: bool = False
    gate: Gate = "silu"
    attention_scale: float | None = None
    embedding_scale: float = 1.0
    rounds_embedding_scale: bool = False
    logit_divisor: float = 1.0
    logit_cap: float | None = None
    value_norm: bool = False
    layer_scale: bool = False
    layer_input_size: int = 0
    num_borrowing_layers: int = 0
    has_wide_borrowers: bool = False
    full_head_dim: int | None = None
    full_num_kv_heads: int | None = None
    attention_sinks: bool = False
    num_experts: int = 0
    num_chosen_experts: int = 0
    routing: SigmoidRouting | None = None
    shared_size: int = 0
    gates_shared: bool = True
    dense_layers: tuple[int, ...] = ()
    dense_size: int = 0
    gates_attention: bool = False
    convolution: ShortConvolution | None = None
    delta_net: GatedDeltaNet | None = None
    mamba: Mamba2 | None = None
    mixer_layers: tuple[int, ...] = ()
    mlp_only: tuple[int, ...] = ()
    mixer_only: tuple[int, ...] = ()

    @property
    def q_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_dim

    @property
    def query_factor(self) -> float:
        """The factor of queries with which attention's usual 1 / sqrt(head_dim) gives `attention_scale`."""
        return 1.0 if self.attention_scale is None else self.attention_scale * sqrt(self.head_dim)

    def of_layer(self, layer: int) -> "ModelSpec":
        """The architecture with the heads and the MLP of this layer as those of all."""
        if layer in self.dense_layers:
            return replace(
                self,
                num_experts=0,
                num_chosen_experts=0,
                shared_size=0,
                intermediate_size=self.dense_size,
                dense_layers=(),
            ).of_layer(layer)
        is_full = layer not in self.sliding_layers
        is_wide = self.has_wide_borrowers and self.borrows(layer)
        if not (is_full and (self.full_head_dim or self.full_num_kv_heads)) and not is_wide:
            return self
        return replace(
            self,
            head_dim=(is_full and self.full_head_dim) or self.head_dim,
            num_kv_heads=(is_full and self.full_num_kv_heads) or self.num_kv_heads,
            intermediate_size=self.intermediate_size * (2 if is_wide else 1),
        )

    @property
    def mixer(self) -> Mixer | None:
        """What the layers `mixer_layers` have in place of attention."""
        return self.convolution or self.delta_net or self.mamba

    def mixer_of(self, layer: int) -> Mixer | None:
        """What a layer has in place of attention; None: it has attention, or is one of `mlp_only`."""
        return self.mixer if layer in self.mixer_layers else None

    @property
    def attention_layers(self) -> tuple[int, ...]:
        """The layers with attention."""
        return tuple(layer for layer in range(self.num_layers) if layer not in (*self.mixer_layers, *self.mlp_only))

    def borrows(self, layer: int) -> bool:
        """Whether a layer attends to the keys and values of another one."""
        return layer >= self.num_layers - self.num_borrowing_layers

    def cached_layer(self, layer: int) -> int:
        """The layer whose keys and values a layer attends to."""
        return self.last_owner(slides=layer in self.sliding_layers) if self.borrows(layer) else layer

    def last_owner(self, *, slides: bool) -> int:
        """The last layer with keys and values of its own, of those with a window or of those without; -1: none."""
        owners = range(self.num_layers - self.num_borrowing_layers)
        return max((owner for owner in owners if (owner in self.sliding_layers) == slides), default=-1)

    def rope_of(self, layer: int) -> RopeSpec | None:
        """A layer's rotation; None: it has none."""
        if layer in self.unrotated_layers:
            return None
        return self.sliding_rope or self.rope if layer in self.sliding_layers else self.rope

    def window_of(self, layer: int) -> int | None:
        """The window of a layer's attention in tokens; None: it has none."""
        return self.window if layer in self.sliding_layers else None

    def for_length(self, max_length: int) -> "ModelSpec":
        """The architecture for texts of at most this many tokens; see `RopeSpec.for_length`."""
        sliding = None if self.sliding_rope is None else self.sliding_rope.for_length(max_length)
        return replace(self, rope=self.rope.for_length(max_length), sliding_rope=sliding)

    @property
    def num_parameters(self) -> int:
        """Stored weights, counting a tied head once."""
        sizes = sum(map(self._num_in_layer, range(self.num_layers)))
        if self.layer_input_size:
            width = self.num_layers * self.layer_input_size
            sizes += width * (self.vocab_size + 3 * self.hidden_size) + self.layer_input_size
            sizes += self.num_layers * self.hidden_size
        norms = (2 if self.norms == "around" else 1) * self.hidden_size
        layers = (2 * self.num_layers - len(self.mlp_only) - len(self.mixer_only)) * norms
        layers += self.num_layers * self.layer_scale + len(self.attention_layers) * self._num_in_vectors
        num_vocab_matrices = 1 if self.tied_embeddings else 2
        vocabulary = num_vocab_matrices * self.vocab_size * self.hidden_size
        return sizes + layers + self.hidden_size + vocabulary

    @property
    def _num_in_vectors(self) -> int:
        """Elements of the norms, biases and sinks of a layer's attention."""
        num_norms = 2 * self.head_dim * self.qk_norm + (self.q_size + self.kv_size) * self.qk_norm_whole
        num_queries = self.q_size * (2 if self.gates_attention else 1)
        biases = (num_queries + 2 * self.kv_size) * self.qkv_bias + self.hidden_size * self.out_bias
        return num_norms + biases + self.num_heads * self.attention_sinks

    def _num_in_layer(self, layer: int) -> int:
        """Elements of a layer's matrices, and of the vectors of its mixer and of its MLP."""
        if layer in self.mixer_only:
            return self.num_in_mixer(layer)
        one = self.of_layer(layer)
        num_first = self.num_first_products
        mlp = (num_first + 1) * (one.intermediate_size * (one.num_experts or 1) + one.shared_size) + one.num_experts
        mlp += one.shared_size > 0 and one.gates_shared
        biases = (num_first * one.intermediate_size + one.hidden_size) * (one.num_experts or 1) + one.num_experts
        corrections = one.num_experts * (one.routing is not None and one.routing.has_correction)
        return self.num_in_mixer(layer) + self.hidden_size * mlp + biases * self.mlp_bias + corrections

    @property
    def num_first_products(self) -> int:
        """Products of an MLP's input: gate and up, or up alone."""
        return 1 if self.gate == "relu2" else 2

    def num_in_mixer(self, layer: int) -> int:
        """Elements of the matrices of a layer's attention, or of all that it has in place of attention."""
        if layer in self.mlp_only:
            return 0
        one = self.of_layer(layer)
        mixer = self.mixer_of(layer)
        if mixer is None:
            num_queries = (3 if self.gates_attention else 2) * one.q_size
            return self.hidden_size * (num_queries + (0 if self.borrows(layer) else 2 * one.kv_size))
        return self.hidden_size * (mixer.in_size + mixer.out_size) + mixer.num_in_vectors(self.hidden_size)

    def kv_bytes_per_token(self, bytes_per_element: int, cache: CacheFormat = "model") -> int:
        """Bytes of the cache for each token of a text, layers with a window included, see `kv_bytes_on_cpu`.

        Args:
            bytes_per_element: of the model's dtype.
        """
        element = bytes_per_element if cache == "model" else 1
        return 2 * len(self.attention_layers) * self.most_kv_size(cache) * element

    def most_kv_size(self, cache: CacheFormat = "model") -> int:
        """Elements of a token's keys in the layer that has the most; the cache has room for as many in every layer."""
        layers = map(self.of_layer, range(self.num_layers))
        return max(one.num_kv_heads * one.kv_row_size(cache) for one in layers)

    def kv_row_size(self, cache: CacheFormat) -> int:
        """Elements that the cache stores of a key or a value of one head."""
        return self.head_dim + (SCALE_BYTES if cache == "int8" else 0)


def kv_bytes_on_cpu(spec: ModelSpec, num_tokens: int, bytes_per_element: int, cache: CacheFormat = "model") -> int:
    """Most bytes of the cache of a text of this length, if memory is taken only when it is written to."""
    owners = [layer for layer in spec.attention_layers if not spec.borrows(layer)]
    kept = [
        num_tokens if window is None else min(num_tokens, window + WINDOW_MARGIN + 2 * WINDOW_STEP)
        for window in map(spec.window_of, owners)
    ]
    num_layers = max(1, len(spec.attention_layers))
    num_bytes = sum(kept) * spec.kv_bytes_per_token(bytes_per_element, cache) // num_layers
    return num_bytes + state_bytes(spec, num_tokens, bytes_per_element)


def state_bytes(spec: ModelSpec, num_tokens: int, bytes_per_element: int) -> int:
    """Bytes of what layers with a mixer keep of a text of this length: no more for a longer one."""
    num_values = 0 if spec.mixer is None else ring_size(spec.mixer, num_tokens)
    return num_values * len(spec.mixer_layers) * max(bytes_per_element, STATE_ELEMENT)


def snapshot_bytes(spec: ModelSpec, bytes_per_element: int) -> int:
    """The most bytes of what continues a saved text in layers with a mixer."""
    num_values = 0 if spec.mixer is None else snapshot_size(spec.mixer)
    return num_values * len(spec.mixer_layers) * max(bytes_per_element, STATE_ELEMENT)
