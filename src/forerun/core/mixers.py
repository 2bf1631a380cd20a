"""What a layer can have in place of attention: layers that remember their text in a state, or in their last inputs.

A row leaves a fixed number of values for later rows: the inputs of its convolution, and in layers with a state its
keys, updates and decays. They lie in a slot of the cache, as keys and values of attention do, so trees move and drop
them in the same way. A state sums up all rows before a fixed place of the text.

The place that a row reads depends on its position alone (`GatedDeltaNet.place`). So whether it runs alone, in a tree or
in a prompt, it reads the same state and as many rows after it, in the same order, and has the same bits.
"""

from dataclasses import dataclass
from math import inf
from typing import Final, TypeAlias

# Tokens between fixed places, where states are kept. A state advances by so many rows at once.
PLACE_STRIDE: Final = 32
# Tokens by which the fixed place of a row lags at least behind it. Trees are cut to this depth, so the place lies in
# committed text for every row of every tree.
PLACE_LAG: Final = 64
PASS_ROWS: Final = 256  # of a prompt's pass, at most
INPUTS_REACH: Final = 256  # tokens by which a text can be cut back if its layers have only a convolution


def lagging_place(position: int, stride: int, lag: int) -> int:
    """The last place that lies at least `lag` tokens behind a position."""
    return max(0, (position - lag) // stride) * stride


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortConvolution:
    """B, C and x are products of the input; the output is C times a causal convolution of B x, channel by channel.

    Source: LFM2 (transformers, modeling_lfm2.py).

    Args:
        num_channels: the hidden size.
        kernel_size: rows that a convolution reads, the last of which is its own.
        has_bias: the convolution and both products have a bias.
    """

    num_channels: int
    kernel_size: int
    has_bias: bool = False

    @property
    def in_size(self) -> int:
        """Outputs of the first product."""
        return 3 * self.num_channels

    @property
    def out_size(self) -> int:
        """Inputs of the last product."""
        return self.num_channels

    @property
    def row_size(self) -> int:
        """Values that a row leaves for later ones."""
        return self.num_channels

    @property
    def state_size(self) -> int:
        """Values of a state."""
        return 0

    def num_in_vectors(self, hidden_size: int) -> int:
        """Elements besides the two products."""
        return self.num_channels * self.kernel_size + (self.in_size + self.num_channels + hidden_size) * self.has_bias

    @property
    def stride(self) -> int:
        """Tokens between places; without states every position is one."""
        return 1

    def place(self, position: int) -> int:
        """See `GatedDeltaNet.place`; a row reads no other row but through its convolution."""
        return position

    @property
    def reach(self) -> int:
        """See `GatedDeltaNet.reach`."""
        return INPUTS_REACH + self.kernel_size


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedDeltaNet:
    """A linear attention whose state S, a matrix for each head, forgets by a decay and corrects what it holds of a key.

    With a key k, a value v, a query q, beta and the decay d of a row: S becomes d S + k u^T for the update
    u = beta (v - d S^T k), and the output is S^T q. Before that q, k and v pass through a causal convolution with silu.
    After it each head's output is normalised and multiplied by silu of a gate.

    Source: arXiv 2412.06464; Qwen3-Next and Qwen3.5 (transformers, modeling_qwen3_5.py).

    Args:
        key_dim, value_dim: sizes of a head.
        kernel_size: rows that the convolution reads, the last of which is its own.
        has_tiled_keys: value head h has the key head h modulo the number of key heads, as in GGUF files; otherwise
            neighbouring value heads share one.
        stride, lag: see PLACE_STRIDE and PLACE_LAG; others are for tests.
    """

    num_key_heads: int
    num_value_heads: int
    key_dim: int
    value_dim: int
    kernel_size: int
    has_tiled_keys: bool = False
    stride: int = PLACE_STRIDE
    lag: int = PLACE_LAG

    @property
    def key_size(self) -> int:
        return self.num_key_heads * self.key_dim

    @property
    def value_size(self) -> int:
        return self.num_value_heads * self.value_dim

    @property
    def num_channels(self) -> int:
        """Queries, keys and values, which pass through the convolution."""
        return 2 * self.key_size + self.value_size

    @property
    def in_size(self) -> int:
        """Outputs of the first product: the channels, the output's gate, beta and the decay's input."""
        return self.num_channels + self.value_size + 2 * self.num_value_heads

    @property
    def out_size(self) -> int:
        """Inputs of the last product."""
        return self.value_size

    @property
    def row_size(self) -> int:
        """Values that a row leaves for later ones: its channels, its keys, its updates and its decays."""
        return self.num_channels + self.key_size + self.value_size + self.num_value_heads

    @property
    def state_size(self) -> int:
        """Values of a state."""
        return self.num_value_heads * self.key_dim * self.value_dim

    def num_in_vectors(self, _: int) -> int:
        """Elements besides the two products."""
        return self.num_channels * self.kernel_size + self.value_dim + 2 * self.num_value_heads

    @property
    def first_channel(self) -> int:
        """The first of the first product's outputs that passes through the convolution."""
        return 0

    @property
    def key_heads(self) -> list[int]:
        """The key head of every value head."""
        group = self.num_value_heads // self.num_key_heads
        heads = range(self.num_value_heads)
        return [head % self.num_key_heads if self.has_tiled_keys else head // group for head in heads]

    def place(self, position: int) -> int:
        """The number of tokens that are summed up in the state which the row at `position` reads."""
        return lagging_place(position, self.stride, self.lag)

    @property
    def reach(self) -> int:
        """The most rows before the end of a text that are kept for the rows behind it: those since the older of its two
        states, so that it can also be cut back by a stride."""
        return self.lag + 2 * self.stride


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba2:
    """A linear attention whose state S, a matrix for each head, forgets by a decay.

    With a key k (B in the paper), a query q (C), a value v (x), and a step t and the decay d = exp(rate t) of a row:
    S becomes d S + k u^T for the update u = t v, and the output is S^T q plus a multiple of v. Before that k, q and v
    pass through a causal convolution with silu. The output is multiplied by silu of a gate, then normalised by groups.
    The step is the softplus of an input, within limits.

    Source: arXiv 2405.21060; Granite 4 (transformers, modeling_granitemoehybrid.py) and Nemotron-H.

    Args:
        num_key_heads: groups of heads, each with a key and a query; the output is normalised by as many groups.
        num_value_heads: heads.
        key_dim, value_dim: sizes of a head's state.
        kernel_size: rows that the convolution reads, the last of which is its own.
        has_bias: the convolution has a bias.
        has_product_bias: both products have one.
        norm_eps: of the output's norm.
        step_limits: the least and the largest step.
        stride, lag: see PLACE_STRIDE and PLACE_LAG; others are for tests.
    """

    num_key_heads: int
    num_value_heads: int
    key_dim: int
    value_dim: int
    kernel_size: int
    norm_eps: float
    has_bias: bool = True
    has_product_bias: bool = False
    step_limits: tuple[float, float] = (0.0, inf)
    stride: int = PLACE_STRIDE
    lag: int = PLACE_LAG

    @property
    def key_size(self) -> int:
        return self.num_key_heads * self.key_dim

    @property
    def value_size(self) -> int:
        return self.num_value_heads * self.value_dim

    @property
    def num_channels(self) -> int:
        """Values, keys and queries, which pass through the convolution."""
        return self.value_size + 2 * self.key_size

    @property
    def first_channel(self) -> int:
        """The first of the first product's outputs that passes through the convolution; those before are the gate."""
        return self.value_size

    @property
    def in_size(self) -> int:
        """Outputs of the first product: the gate, the channels and the steps' inputs."""
        return self.value_size + self.num_channels + self.num_value_heads

    @property
    def out_size(self) -> int:
        """Inputs of the last product."""
        return self.value_size

    @property
    def row_size(self) -> int:
        """Values that a row leaves for later ones: its channels, its keys, its updates and its decays."""
        return self.num_channels + self.key_size + self.value_size + self.num_value_heads

    @property
    def state_size(self) -> int:
        """Values of a state."""
        return self.num_value_heads * self.key_dim * self.value_dim

    def num_in_vectors(self, hidden_size: int) -> int:
        """Elements besides the two products."""
        products = (self.in_size + hidden_size) * self.has_product_bias
        return (
            self.num_channels * (self.kernel_size + self.has_bias)
            + self.value_size
            + 3 * self.num_value_heads
            + products
        )

    @property
    def key_heads(self) -> list[int]:
        """The key head of every value head."""
        group = self.num_value_heads // self.num_key_heads
        return [head // group for head in range(self.num_value_heads)]

    def place(self, position: int) -> int:
        """See `GatedDeltaNet.place`."""
        return lagging_place(position, self.stride, self.lag)

    @property
    def reach(self) -> int:
        """See `GatedDeltaNet.reach`."""
        return self.lag + 2 * self.stride


Mixer: TypeAlias = ShortConvolution | GatedDeltaNet | Mamba2
StateMixer: TypeAlias = GatedDeltaNet | Mamba2  # those with a state


def deepest_level(mixer: Mixer | None) -> int | None:
    """The level of a tree, the root's being 0, below which a row's place would not lie in committed text; None: no
    level."""
    return None if mixer is None or isinstance(mixer, ShortConvolution) else mixer.lag


def ring_slots(mixer: Mixer, capacity: int, num_rows: int = 0) -> int:
    """Slots of the ring in which rows leave their values: as many as a text's end and a pass or a tree need, and a
    multiple of the stride, so that the rows between two places follow each other.

    Args:
        capacity: slots of the text and its tree, if there are fewer.
        num_rows: of the largest tree; a prompt's pass has room in any case.
    """
    needed = min(capacity, mixer.reach + max(PASS_ROWS, num_rows))
    return -(-needed // mixer.stride) * mixer.stride


def ring_states(mixer: Mixer) -> int:
    """Places of the ring of a layer's states: from the place before that of a text's end to that of the last row of a
    prompt's pass behind it."""
    return 2 + -(-PASS_ROWS // mixer.stride) if mixer.state_size else 0


def ring_size(mixer: Mixer, capacity: int, num_rows: int = 0) -> int:
    """Values that a layer with a mixer keeps, whatever the text's length."""
    return ring_states(mixer) * mixer.state_size + ring_slots(mixer, capacity, num_rows) * mixer.row_size


def snapshot_size(mixer: Mixer) -> int:
    """The most values of a layer that continue a saved text."""
    num_rows = 0 if isinstance(mixer, ShortConvolution) else mixer.lag + mixer.stride
    inputs = (mixer.kernel_size - 1) * mixer.num_channels
    return inputs + num_rows * (mixer.row_size - mixer.num_channels) + mixer.state_size
