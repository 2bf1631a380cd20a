"""A Llama over many texts at once, with gradients. The target writes texts with it, and drafts are trained as one.

Legend: B texts, T rows of each, S slots of its cache, Q query heads, K key/value heads, D head size, H hidden size,
V vocabulary.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from forerun.core.errors import require
from forerun.core.machine import has_fast_bfloat16
from forerun.core.mechanisms import lacking, mechanisms_of
from forerun.core.model_spec import ModelSpec
from forerun.drafting.heads.kind import HeadSpec
from forerun.model.quantise import as_plain
from forerun.model.rope import rope_table
from forerun.model.weights import WeightSource

LINEAR: Final = ("qkv", "attention_out", "gate_up", "mlp_out")
LONG_SHARE: Final = 8  # on CPUs, one text in so many, the longest ones, has its attention computed alone
LONGEST_HELD: Final = 1024  # longest texts, in tokens, whose attention scores are all held in memory


class TextCache:
    """Keys and values of many texts of different lengths.

    Args:
        num_slots: tokens of the longest text.
    """

    def __init__(self, spec: ModelSpec, *, num_texts: int, num_slots: int, dtype: torch.dtype, device: str) -> None:
        shape = (spec.num_layers, 2, num_texts, spec.num_kv_heads, num_slots, spec.head_dim)
        self.values = torch.zeros(shape, dtype=dtype, device=device)
        self.lengths = torch.zeros(num_texts, dtype=torch.int64, device=device)
        self._texts_B1 = torch.arange(num_texts, device=device)[:, None]

    def make_room(self, num_rows: int) -> None:
        """Make room for `num_rows` rows after every text."""
        device = self.lengths.device
        self._slots_BT = self.lengths[:, None] + torch.arange(num_rows, device=device)
        ends = sorted((length + num_rows, text) for text, length in enumerate(self.lengths.tolist()))
        num_usual = len(ends) - (len(ends) // LONG_SHARE if device.type == "cpu" else 0)
        self._usual_end = ends[num_usual - 1][0]
        self._long = [(end, text) for end, text in ends[num_usual:] if end > self._usual_end]
        self._sees_B1TS = torch.arange(ends[-1][0], device=device) <= self._slots_BT[:, None, :, None]

    def attend(self, layer: int, q_BQTD: Tensor, k_BKTD: Tensor, v_BKTD: Tensor) -> Tensor:
        """Append a layer's rows of this pass to every text; the values that they see, mixed, [B, Q, T, D].

        The longest texts are computed again one by one, so that the others are not padded to their length.
        """
        keys, values = self.values[layer]
        keys[self._texts_B1, :, self._slots_BT] = k_BKTD.transpose(1, 2)
        values[self._texts_B1, :, self._slots_BT] = v_BKTD.transpose(1, 2)
        end = self._usual_end
        sees = self._sees_B1TS
        mixed = attend_in_groups(q_BQTD, keys[:, :, :end], values[:, :, :end], sees[..., :end])
        for end, text in self._long:
            one = slice(text, text + 1)
            mixed[one] = attend_in_groups(q_BQTD[one], keys[one, :, :end], values[one, :, :end], sees[one, ..., :end])
        return mixed


class Network(nn.Module):
    """A Llama; its weights have the names of `checkpoints.huggingface.names.tensor_plan`."""

    def __init__(self, spec: ModelSpec, weights: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.spec = spec
        self._weights = nn.ParameterDict({in_dict(name): nn.Parameter(value) for name, value in weights.items()})
        self._rope: Tensor | None = None

    @property
    def body(self) -> ModelSpec:
        """The sizes of its layers."""
        return self.spec

    @property
    def weights(self) -> dict[str, Tensor]:
        """Every weight, keyed by its name, without gradients."""
        return {name.replace("/", "."): value.detach() for name, value in self._weights.items()}

    def hidden(self, ids_BT: Tensor, cache: TextCache | None = None) -> Tensor:
        """The normed hidden states [B, T, H] of the rows, which follow the texts in `cache` if there is one."""
        x = deque(self._streams(ids_BT, cache), 1)[0]
        if cache is not None:
            cache.lengths += ids_BT.shape[1]
        return self._norm("final_norm", x)

    def features(self, ids_BT: Tensor, layers: Sequence[int]) -> Tensor:
        """[B, T, F, H], the residual stream after each of these layers, of whole texts."""
        streams = list(islice(self._streams(ids_BT, None), max(layers) + 1))
        return torch.stack([streams[layer] for layer in layers], -2)

    @property
    def table(self) -> Tensor:
        """The embedding [V, H]."""
        return self._weight("embedding.weight")

    @property
    def output(self) -> Tensor:
        """The output's weight [V, H]."""
        return self._weight("embedding.weight" if self.spec.tied_embeddings else "head.weight")

    def _streams(self, ids_BT: Tensor, cache: TextCache | None) -> Iterator[Tensor]:
        """The residual stream [B, T, H] after each layer."""
        begin = ids_BT.new_zeros(1, 1) if cache is None else cache.lengths[:, None]
        if cache is not None:
            cache.make_room(ids_BT.shape[1])
        positions_BT = begin + torch.arange(ids_BT.shape[1], device=ids_BT.device)
        rope = self._rope_at(positions_BT)
        x = functional.embedding(ids_BT, self._weight("embedding.weight"))
        for layer in range(self.spec.num_layers):
            x = x + self._attention(layer, self._norm(f"layers.{layer}.attention_norm", x), rope, cache)
            h = self._linear(f"layers.{layer}.gate_up", self._norm(f"layers.{layer}.mlp_norm", x))
            gate, up = h.chunk(2, -1)
            x = x + self._linear(f"layers.{layer}.mlp_out", functional.silu(gate) * up)
            yield x

    def logits(self, hidden: Tensor) -> Tensor:
        """[..., V] of hidden states."""
        return functional.linear(hidden, self.output)

    def _attention(self, layer: int, h_BTH: Tensor, rope: tuple[Tensor, Tensor], cache: TextCache | None) -> Tensor:
        spec = self.spec
        part = f"layers.{layer}."
        num_texts, num_rows, _ = h_BTH.shape
        heads = self._linear(part + "qkv", h_BTH).view(num_texts, num_rows, -1, spec.head_dim).transpose(1, 2)
        q, k, v = torch.split(heads, [spec.num_heads, spec.num_kv_heads, spec.num_kv_heads], 1)
        if spec.qk_norm:
            q = self._norm(part + "q_norm", q)
            k = self._norm(part + "k_norm", k)
        q = rotate(q, *rope)
        k = rotate(k, *rope)
        mixed = attend_to_own_text(q, k, v) if cache is None else cache.attend(layer, q, k, v)
        return self._linear(part + "attention_out", mixed.transpose(1, 2).reshape(num_texts, num_rows, -1))

    def _linear(self, name: str, x: Tensor) -> Tensor:
        bias = self._weight(f"{name}.bias") if in_dict(f"{name}.bias") in self._weights else None
        return functional.linear(x, self._weight(f"{name}.weight"), bias)

    def _norm(self, name: str, x: Tensor) -> Tensor:
        return functional.rms_norm(x, x.shape[-1:], self._weight(f"{name}.weight"), self.spec.norm_eps)

    def _weight(self, name: str) -> Tensor:
        weight: Tensor = self._weights[in_dict(name)]
        return weight

    def _rope_at(self, positions_BT: Tensor) -> tuple[Tensor, Tensor]:
        like = self._weight("final_norm.weight")
        if self._rope is None or self._rope.device != like.device:
            self._rope = rope_table(
                self.spec.rope,
                self.spec.head_dim,
                self.spec.max_positions,
                dtype=torch.float32,
                device=str(like.device),
            )
        table = self._rope[positions_BT].to(like.dtype)[:, None]
        return table[..., 0, :], table[..., 1, :]


class HeadNetwork(nn.Module):
    """The weights of a head by their published names."""

    def __init__(self, spec: HeadSpec, weights: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.spec = spec
        self._weights = nn.ParameterDict({in_dict(name): nn.Parameter(value) for name, value in weights.items()})

    @property
    def body(self) -> ModelSpec:
        """The sizes of its layers."""
        return self.spec.body

    @property
    def weights(self) -> dict[str, Tensor]:
        """Every weight, keyed by its name, without gradients."""
        return {name: value.detach() for name, value in self.live().items()}

    def live(self) -> dict[str, Tensor]:
        """Every weight, keyed by its name."""
        return {name.replace("/", "."): value for name, value in self._weights.items()}


def in_dict(name: str) -> str:
    """The key of a weight in a ParameterDict, whose keys must not contain dots."""
    return name.replace(".", "/")


def attend_to_own_text(q_BQTD: Tensor, k_BKTD: Tensor, v_BKTD: Tensor) -> Tensor:
    """Causal attention among the rows of whole texts.

    On CPUs the scores of short texts are held in memory: the forward pass is 2.2 times as fast as with torch's kernel,
    the backward pass 3.3 times.
    """
    num_texts, num_heads, num_rows, head_dim = q_BQTD.shape
    if q_BQTD.device.type != "cpu" or num_rows > LONGEST_HELD:
        return functional.scaled_dot_product_attention(q_BQTD, k_BKTD, v_BKTD, is_causal=True, enable_gqa=True)
    groups_GND = q_BQTD.reshape(num_texts * k_BKTD.shape[1], -1, head_dim) * head_dim**-0.5
    scores = groups_GND @ k_BKTD.flatten(0, 1).transpose(1, 2)
    hidden_TT = torch.full((num_rows, num_rows), float("-inf"), dtype=scores.dtype).triu(1)
    weights = (scores.unflatten(1, (-1, num_rows)) + hidden_TT).softmax(-1)
    mixed: Tensor = weights.flatten(1, 2) @ v_BKTD.flatten(0, 1)
    return mixed.view(num_texts, num_heads, num_rows, head_dim)


def attend_in_groups(q_BQTD: Tensor, k_BKSD: Tensor, v_BKSD: Tensor, mask_B1TS: Tensor) -> Tensor:
    """Attention with the query heads of a key head stacked as rows, which is five times as fast as `enable_gqa`."""
    num_texts, num_heads, num_rows, head_dim = q_BQTD.shape
    num_kv_heads = k_BKSD.shape[1]
    grouped = q_BQTD.reshape(num_texts, num_kv_heads, -1, head_dim)
    mask = mask_B1TS.repeat(1, 1, num_heads // num_kv_heads, 1)
    mixed = functional.scaled_dot_product_attention(grouped, k_BKSD, v_BKSD, mask)
    return mixed.view(num_texts, num_heads, num_rows, head_dim)


def rotate(x_BNTD: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding; sin carries a minus sign in its first half, see `model.rope`."""
    return x_BNTD * cos + x_BNTD.roll(x_BNTD.shape[-1] // 2, -1) * sin


def read_network(spec: ModelSpec, source: WeightSource) -> Network:
    """Read a stored model, with quantised weights converted to plain ones."""
    weights = {"embedding.weight": as_plain(source.table()), "final_norm.weight": source.vector("final_norm")}
    names = [f"layers.{layer}.{name}" for layer in range(spec.num_layers) for name in LINEAR]
    for name in names if spec.tied_embeddings else [*names, "head"]:
        weight, bias = source.linear(name)
        weights[f"{name}.weight"] = as_plain(weight)
        if bias is not None:
            weights[f"{name}.bias"] = bias
    for layer in range(spec.num_layers):
        norms = ("attention_norm", "mlp_norm", *(("q_norm", "k_norm") if spec.qk_norm else ()))
        weights |= {f"layers.{layer}.{norm}.weight": source.vector(f"layers.{layer}.{norm}") for norm in norms}
    return Network(spec, weights)


def require_llama(spec: ModelSpec, longest: int) -> None:
    """Refuse a target that computes what `Network` does not, for texts of at most `longest` tokens.

    Raises:
        ConfigError: names these operations.
    """
    missing = lacking(mechanisms_of(spec, longest), frozenset(), "the networks of distillation")
    require(missing is None, f"{missing}: choose a target such as a Llama, Qwen2 or Qwen3")


def fastest_dtype(device: str) -> torch.dtype:
    """The dtype in which the target writes: bfloat16 if the hardware computes it, else float32."""
    return torch.float32 if torch.device(device).type == "cpu" and not has_fast_bfloat16() else torch.bfloat16
