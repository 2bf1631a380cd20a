"""An architecture's sizes and options: all values that the model needs from a checkpoint's config.json."""

from dataclasses import dataclass
from typing import Literal

RopeKind = Literal["default", "linear", "llama3", "yarn"]
WeightFormat = Literal["plain", "int8", "int4"]  # of the weights of linear layers


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeSpec:
    """Rotary position embedding.

    `linear` divides positions by `factor` (DeepSeek-coder). `llama3` stretches low frequencies only (Llama 3.1 and
    later): wavelengths above original_max_positions / low_freq_factor are divided by `factor`, those below
    original_max_positions / high_freq_factor stay, those between are blended.

    `yarn` (arXiv 2309.00071) is similar: dimensions that rotate fewer than `beta_slow` times in original_max_positions
    are divided, those that rotate more than `beta_fast` times are unchanged. Cosines and sines are multiplied by
    `attention_factor`, which sharpens attention. `truncate` rounds the bounds to whole dimensions.

    `divisors`, one for each pair of dimensions, divide the frequencies of any kind: so GGUF files store llama3's.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """One decoder-only transformer of the Llama kind (Llama, Mistral, Qwen2, Qwen3, DeepSeek derivatives).

    Args:
        max_positions: most tokens of a text. Never more than `window`.
        window: size of the sliding attention window in tokens; None: no window. It has no effect on shorter texts.
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

    @property
    def q_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_dim

    @property
    def num_parameters(self) -> int:
        """Stored weights, counting a tied head once."""
        attention = self.hidden_size * (2 * self.q_size + 2 * self.kv_size)
        norms = 2 * self.hidden_size + (2 * self.head_dim if self.qk_norm else 0)
        biases = (self.q_size + 2 * self.kv_size) * self.qkv_bias + self.hidden_size * self.out_bias
        biases += (2 * self.intermediate_size + self.hidden_size) * self.mlp_bias
        layer = attention + 3 * self.hidden_size * self.intermediate_size + norms + biases
        num_vocab_matrices = 1 if self.tied_embeddings else 2
        return self.num_layers * layer + self.hidden_size + num_vocab_matrices * self.vocab_size * self.hidden_size

    def kv_bytes_per_token(self, bytes_per_element: int) -> int:
        """Bytes of keys and values that one token adds to the cache."""
        return 2 * self.num_layers * self.kv_size * bytes_per_element
