"""An assistant of Gemma 4: a few layers of queries alone, which attend to the target's own keys and values.

It keeps nothing but the states of a tree's nodes. Source: transformers' gemma4_assistant and its
SinglePositionMultiTokenCandidateGenerator.

Legend: T rows, S slots, H hidden size of the assistant, G of the target, Q query heads, K key/value heads, D head size,
V vocabulary, C centroids, P active ones.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from forerun.backends.bind import embedding_scale
from forerun.core.drafter_config import DraftHead
from forerun.core.sublayers import SkipSet
from forerun.core.threads import inference
from forerun.drafting.draft_model import UsualAcceptance, serial_rows
from forerun.drafting.draft_rows import DraftRows
from forerun.drafting.heads.assistant import AssistantSpec, token_order
from forerun.drafting.heads.drafter import HeadDrafter
from forerun.drafting.heads.executor import without_waking
from forerun.drafting.heads.features import TextFeatures
from forerun.drafting.heads.kind import StoredHead
from forerun.drafting.heads.layer import Embed, HeadWeights, Linear, attend, rms, rotate
from forerun.drafting.heads.loading import HeadLoading
from forerun.model.executor import Executor, ForwardInput, ForwardOutput, Observer
from forerun.model.rope import rope_table
from forerun.model.runner import Runner
from forerun.model.tree_cache import TreeCache
from forerun.speculation.tree import TokenTree

TargetKeys: TypeAlias = Callable[[int], tuple[Tensor, Tensor]]  # a layer to the keys and values [S, K, D] it reads


class AssistantHead:
    """The formulas.

    Args:
        embed: the target's embedding, and `scale` its factor.
        final_norm: [G], the weight of the target's last norm, and `eps` its epsilon.
        order: [V], the tokens of each centroid in turn; None without centroids.
        capacity: places of the longest text.
    """

    def __init__(
        self,
        spec: AssistantSpec,
        weights: HeadWeights,
        *,
        embed: Embed,
        scale: float,
        final_norm: Tensor,
        eps: float,
        order: Tensor | None,
        capacity: int,
    ) -> None:
        self.spec = spec
        self._weights = weights
        self._embed = embed
        self._scale = scale
        self._final_norm = final_norm
        self._eps = eps
        self._embedding_VH = weights["embed_tokens.weight"]
        self._enter = weights.linear("pre_projection")
        self._leave = weights.linear("post_projection")
        body = spec.body
        dtype = self._embedding_VH.dtype
        device = str(self._embedding_VH.device)
        self._layers = [_Layer(weights, spec, idx) for idx in range(body.num_layers)]
        self._cos_sin = {
            (rope, head_dim): rope_table(rope, head_dim, capacity, dtype=dtype, device=device)
            for rope, head_dim in {(body.rope_of(idx), body.of_layer(idx).head_dim) for idx in range(body.num_layers)}
        }
        if spec.num_centroids:
            assert order is not None, "the tokens of the centroids"
            self._centroids = weights.linear("masked_embedding.centroids")
            self._order_CV = order.view(spec.num_centroids, -1)

    def states(self, features: Tensor) -> Tensor:
        """[..., G], the target's last hidden states, of its residual stream [..., 1, G] after the last layer."""
        return rms(features[..., 0, :], self._final_norm, self._eps).to(features.dtype)

    def step(self, ids: Tensor, states: Tensor, place: int, keys: TargetKeys) -> tuple[Tensor, Tensor]:
        """Logits [T, V] of the tokens after `ids`, and the states [T, G] with which those are read.

        Args:
            place: of the root, at which all rows stand.
        """
        embedded = self._embed(ids).to(states.dtype) * self._scale
        stream = self._enter(torch.cat((embedded, states), -1))
        for idx, layer in enumerate(self._layers):
            body = self.spec.body
            cos_sin = self._cos_sin[body.rope_of(idx), body.of_layer(idx).head_dim][place]
            stream = layer.run(stream, cos_sin, *keys(idx))
        outputs = rms(stream, self._weights["norm.weight"], self.spec.body.norm_eps)
        return self.logits(outputs), self._leave(outputs)

    def logits(self, outputs_TH: Tensor) -> Tensor:
        """[T, V]; tokens whose centroid is not among the nearest have minus infinity."""
        if not self.spec.num_centroids:
            return outputs_TH @ self._embedding_VH.T
        active_TP = self._centroids(outputs_TH).topk(self.spec.num_active, -1).indices
        ids = self._order_CV[active_TP].flatten(1)
        found = (self._embedding_VH[ids] @ outputs_TH[..., None]).squeeze(-1)
        full = found.new_full((len(found), self.spec.body.vocab_size), -math.inf)
        return full.scatter(1, ids, found)


class _Layer:
    """A layer of Gemma 4 without keys and values of its own."""

    def __init__(self, weights: HeadWeights, spec: AssistantSpec, idx: int) -> None:
        self._part = f"layers.{idx}."
        self._eps = spec.body.norm_eps
        self._head_dim = spec.body.of_layer(idx).head_dim
        self._window = spec.body.window_of(idx)
        self._weights = weights
        self._q, self._o = (self._linear(f"self_attn.{name}_proj") for name in "qo")
        self._gate, self._up, self._down = (self._linear(f"mlp.{name}_proj") for name in ("gate", "up", "down"))

    def run(self, stream: Tensor, cos_sin: Tensor, keys_SKD: Tensor, values_SKD: Tensor) -> Tensor:
        """[T, H] after the layer."""
        q = self._q(self._norm("input_layernorm.weight", stream)).view(len(stream), -1, self._head_dim)
        q = rotate(self._norm("self_attn.q_norm.weight", q), cos_sin) * math.sqrt(self._head_dim)  # the scale is 1
        if self._window is not None:  # the row itself has no key
            keys_SKD = keys_SKD[-self._window - 1 :]
            values_SKD = values_SKD[-self._window - 1 :]
        sees = torch.ones(len(stream), len(keys_SKD), dtype=torch.bool, device=stream.device)
        mixed = self._o(attend(q, keys_SKD, values_SKD, sees))
        stream = stream + self._norm("post_attention_layernorm.weight", mixed)
        x = self._norm("pre_feedforward_layernorm.weight", stream)
        x = self._down(functional.gelu(self._gate(x), approximate="tanh") * self._up(x))
        stream = stream + self._norm("post_feedforward_layernorm.weight", x)
        return stream * self._weights[self._part + "layer_scalar"]

    def _linear(self, name: str) -> Linear:
        return self._weights.linear(self._part + name)

    def _norm(self, name: str, x: Tensor) -> Tensor:
        return rms(x, self._weights[self._part + name], self._eps)


class AssistantExecutor(Executor):
    """An assistant that reads the target's cache, which only the target writes.

    Args:
        layers: for each layer of the assistant that of the target whose keys and values it reads.
    """

    def __init__(self, head: AssistantHead, cache: TreeCache, layers: Sequence[int]) -> None:
        self.head = head
        self._cache = cache
        self._layers = layers

    def step(self, token_ids: Sequence[int], states: Tensor, place: int) -> tuple[Tensor, Tensor]:
        """See `AssistantHead.step`; the rows see all tokens before `place`."""

        def keys(idx: int) -> tuple[Tensor, Tensor]:
            return self._cache.read(self._layers[idx], place)

        ids = torch.tensor(token_ids, device=states.device)
        with inference():
            return without_waking(len(token_ids), lambda: self.head.step(ids, states, place, keys))

    def run(self, inputs: ForwardInput, observe: Observer | None = None) -> ForwardOutput:
        """One pass from states of zeros, for measuring."""
        size = (len(inputs.token_ids), self.head.spec.target_hidden_size)
        states = torch.zeros(size, dtype=self._cache.dtype, device=self._cache.device)
        logits, _ = self.step(inputs.token_ids, states, max(1, inputs.first_slot))
        return ForwardOutput(logits=logits)


class AssistantRows(DraftRows):
    """The states of a tree's nodes. The target's cache ends before the root, whose token only the assistant reads."""

    def __init__(self, runner: Runner, executor: AssistantExecutor, features: TextFeatures) -> None:
        super().__init__(runner, 0)
        self._executor = executor
        self._features = features
        self._root = 0

    @property
    def is_rooted(self) -> bool:
        return bool(self._states)

    def has_room(self, num_nodes: int) -> bool:
        return self.is_rooted or self._root - 1 in self._features

    def start_text(self, text: list[int], owner: str) -> None:
        self._forget_nodes()
        self._features.clear()
        self._root = len(text) - 1

    def expand(
        self, tree: TokenTree, batch: list[int], token_ids: list[int], text: list[int], skipped: SkipSet
    ) -> Tensor:
        before = [self._states[tree.parents[node]] if node else self._state_of_text() for node in batch]
        logits, after = self._executor.step(token_ids, torch.stack(before), self._root)
        self._states |= zip(batch, after, strict=True)
        return logits

    def told(self, tree: TokenTree, path: Iterable[int], places: dict[int, int], text: list[int]) -> None:
        super().told(tree, path, places, text)
        self._root = len(text) - 1
        self._features.drop_before(self._root - 1)

    def _state_of_text(self) -> Tensor:
        """[G], with which the root is read."""
        return self._executor.head.states(self._features.rows([self._root - 1]))[0]

    def _forget_nodes(self) -> None:
        super()._forget_nodes()
        self._states: dict[int, Tensor] = {}  # of expanded nodes, with which their children are read


class AssistantDrafter(HeadDrafter):
    """Grows its tree with an assistant, one pass for each batch of nodes. Looked-up text is not hung into it."""

    usual_acceptance = UsualAcceptance(kind="an assistant", low=70, high=97, floor=40)

    def _make_rows(self, runner: Runner, config: DraftHead) -> AssistantRows:
        executor = runner.executor
        assert isinstance(executor, AssistantExecutor), f"the executor of an assistant, not {type(executor)}"
        self._executor = executor
        return AssistantRows(runner, executor, self._features)

    @property
    def reading_s(self) -> float:
        return 0.0

    def read_features(self, place: int, features: Tensor) -> None:
        super().read_features(place + len(features) - 1, features[-1:])  # no row reads those before


def load(stored: StoredHead, given: HeadLoading) -> HeadDrafter:
    """The drafter of an assistant, in the target's dtype. It reads the target's embedding, keys and values."""
    spec = stored.spec
    assert isinstance(spec, AssistantSpec), "an assistant"
    target = given.target.spec
    order = token_order(stored)
    head = AssistantHead(
        spec,
        HeadWeights(stored.weights(dtype=given.dtype, device=given.device)),
        embed=given.shared.embed,
        scale=embedding_scale(target, given.dtype),
        final_norm=given.source.weights(dtype=given.dtype, device=given.device).vector("final_norm"),
        eps=target.norm_eps,
        order=None if order is None else order.to(given.device),
        capacity=given.capacity,
    )
    layers = [spec.layer_of(target, layer) for layer in range(spec.body.num_layers)]
    executor = AssistantExecutor(head, given.target.cache, layers)
    runner = Runner(
        spec.body,
        None,
        backend=given.backend,
        capacity=serial_rows(given.config.shape),  # used only for measuring
        dtype=given.dtype,
        device=given.device,
        pace=given.pace,
        make_executor=lambda _: executor,
    )
    return AssistantDrafter(
        runner, given.config, given.policy, target_vocab_size=target.vocab_size, taps=spec.taps(target.num_layers)
    )
