"""An EAGLE-3 head: one step predicts the token after the next, from the target's features or from its own last state.
Its formulas, its executors, its rows and its drafter.

Legend: T rows, S slots, H hidden size of the head, F features of a token, G size of a feature, K key/value heads,
D head size, W rows of the head's output; dots stand for texts.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Protocol, TypeAlias

import torch
from torch import Tensor

from forerun.backends.backend import Backend, DraftLayers
from forerun.backends.device_rounds import RoundPlan
from forerun.core.drafter_config import DraftHead
from forerun.drafting.draft_model import UsualAcceptance, serial_rows
from forerun.drafting.heads.drafter import HeadDrafter
from forerun.drafting.heads.eagle import EagleSpec
from forerun.drafting.heads.eagle_program import EagleWeights, eagle_program
from forerun.drafting.heads.executor import HeadExecutor, all_known, rotations
from forerun.drafting.heads.features import TextFeatures
from forerun.drafting.heads.kind import HeadSpec, StoredHead
from forerun.drafting.heads.layer import Embed, HeadLayer, HeadWeights, Linear, attend, rms
from forerun.drafting.heads.loading import HeadLoading, load_with_cache
from forerun.drafting.heads.rows import HeadRows
from forerun.model.executor import ForwardInput, ForwardOutput
from forerun.model.runner import Runner
from forerun.model.tree_cache import TreeCache
from forerun.speculation.tree import TokenTree

Mix: TypeAlias = Callable[[int, Tensor, Tensor, Tensor], Tensor]  # a layer's queries, keys and values to its mixture


class EagleHead:
    """What a head computes before and after its layers.

    The row of a token at place p reads the token, and the feature of place p - 1; it predicts the token at p + 1.

    Args:
        weights: by their published names, with the first layer as "layers.0.".
        embed: the embedding of the target's tokens.
        output: H to W.
    """

    def __init__(self, spec: EagleSpec, weights: HeadWeights, embed: Embed, output: Linear) -> None:
        self.spec = spec
        self.embed = embed
        self.output = output
        self._weights = weights
        self._fc = weights.linear("fc")

    def states(self, features: Tensor) -> Tensor:
        """[..., T, H], what the head reads of the target's features [..., T, F, G]."""
        spec = self.spec
        if spec.norms_each:
            each = [self._norm(f"fc_norm.{idx}.weight", feature) for idx, feature in enumerate(features.unbind(-2))]
            features = torch.stack(each, -2)
        flat = features.flatten(-2)
        if spec.norms_all:
            flat = self._norm("input_norm.weight", flat)
        return self._fc(flat)

    def logits(self, outputs: Tensor) -> Tensor:
        """[..., T, W] of the last layer's outputs."""
        return self.output(self._normed(outputs) if self.spec.norms_logits else outputs)

    def next_states(self, outputs: Tensor) -> Tensor:
        """The states [..., T, H] from which the next tokens' rows start, where the target's features are not known."""
        return self._normed(outputs) if self.spec.norms_state else outputs

    def _normed(self, outputs: Tensor) -> Tensor:
        return self._norm("norm.weight", outputs)

    def _norm(self, name: str, x: Tensor) -> Tensor:
        return rms(x, self._weights[name], self.spec.body.norm_eps)


class TorchEagleHead(EagleHead):
    """A head with its layers in torch; where keys and values are kept is the caller's business."""

    def __init__(self, spec: EagleSpec, weights: HeadWeights, embed: Embed, output: Linear) -> None:
        super().__init__(spec, weights, embed, output)
        self._layers = [HeadLayer(weights, f"layers.{idx}.", spec.body) for idx in range(spec.body.num_layers)]

    def step(self, ids: Tensor, states: Tensor, cos_sin: Tensor, mix: Mix) -> Tensor:
        """The last layer's output [..., T, H] for tokens [..., T] and states [..., T, H].

        Args:
            cos_sin: [..., T, 2, D], the rotations at the rows' places.
            mix: attention, given the index of a layer.
        """
        first, *others = self._layers
        normed = first.norm("hidden_norm", states)
        embedded = first.norm("input_layernorm", self.embed(ids))
        stream = normed if self.spec.norms_residual else states
        stream = stream + first.attended(mix(0, *first.qkv(torch.cat((embedded, normed), -1), cos_sin)))
        stream = stream + first.mlp(first.norm("post_attention_layernorm", stream))
        for idx, layer in enumerate(others, 1):
            mixed = mix(idx, *layer.qkv(layer.norm("input_layernorm", stream), cos_sin))
            stream = stream + layer.attended(mixed)
            stream = stream + layer.mlp(layer.norm("post_attention_layernorm", stream))
        return stream


class StateHead(Protocol):
    """A head in torch whose rows start from the target's state, or from the row before; see `TorchEagleHead`."""

    @property
    def spec(self) -> HeadSpec: ...

    def states(self, features: Tensor) -> Tensor: ...

    def step(self, ids: Tensor, states: Tensor, cos_sin: Tensor, mix: Mix) -> Tensor: ...

    def logits(self, outputs: Tensor) -> Tensor: ...

    def next_states(self, outputs: Tensor) -> Tensor: ...


class EagleExecutor(HeadExecutor):
    """An EAGLE-3 head, or another one with such rows, in torch, with its cache."""

    def __init__(self, head: StateHead, cache: TreeCache) -> None:
        super().__init__(head.spec.body, cache, head.states)
        self.head = head
        self.cos_sin_P2D = rotations(head.spec.body, cache)

    def compute(self, inputs: ForwardInput, states_TH: Tensor) -> ForwardOutput:
        """One pass; `features` of its output are the rows' next states, [T, 1, H]."""
        first = inputs.first_slot
        end = inputs.num_slots
        sees_TS = self._visible(inputs)

        def mix(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys_SKD = self.cache.keys_LSKD[layer]
            values_SKD = self.cache.values_LSKD[layer]
            keys_SKD[first:end] = k
            values_SKD[first:end] = v
            return attend(q, keys_SKD[:end], values_SKD[:end], sees_TS)

        outputs_TH = self.head.step(
            self.ids(inputs.token_ids), states_TH, self.cos_sin_P2D[self.ids(inputs.positions)], mix
        )
        logits = self.head.logits(outputs_TH[len(outputs_TH) - inputs.num_logit_rows :])
        return ForwardOutput(logits=logits, features=self.head.next_states(outputs_TH)[:, None])

    def pass_at(
        self, ids_T: Tensor, states_TH: Tensor, is_known_T: Tensor, places_T: Tensor, slots_T: Tensor, sees_TN: Tensor
    ) -> Tensor:
        """The last layer's outputs [T, H] of rows in these slots; nothing here depends on data on the host.

        Args:
            is_known_T: bool, the rows whose states are known; the others stay unseen.
            sees_TN: bool, which of the first N slots every row attends to.
        """
        self.is_known_S.index_copy_(0, slots_T, is_known_T)
        num_seen = sees_TN.shape[1]

        def mix(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys_SKD = self.cache.keys_LSKD[layer]
            values_SKD = self.cache.values_LSKD[layer]
            keys_SKD.index_copy_(0, slots_T, k.masked_fill(~is_known_T[:, None, None], 0.0))  # see `clear`
            values_SKD.index_copy_(0, slots_T, v)
            return attend(q, keys_SKD[:num_seen], values_SKD[:num_seen], sees_TN)

        return self.head.step(ids_T, states_TH, self.cos_sin_P2D[places_T], mix)

    def next_states(self, outputs_TH: Tensor) -> Tensor:
        """The states from which the rows of the next tokens start."""
        return self.head.next_states(outputs_TH)

    def logits(self, outputs_TH: Tensor) -> Tensor:
        """[T, W] of such outputs."""
        return self.head.logits(outputs_TH)

    def _visible(self, inputs: ForwardInput) -> Tensor:
        """bool [T, S]: the slots that every row attends to."""
        if inputs.ancestry is not None:
            text_TS = self.is_known_S[: inputs.prefix_len].expand(len(inputs.token_ids), -1)
            return torch.cat((text_TS, torch.from_numpy(inputs.ancestry).to(self.device)), 1)
        slots_S = torch.arange(inputs.num_slots, device=self.device)
        return self.is_known_S[: inputs.num_slots] & (slots_S <= slots_S[inputs.first_slot :, None])


class ProgramEagleExecutor(HeadExecutor):
    """A head whose layers a backend runs in one call, with its cache: torch's small calls took most of a pass.

    Args:
        head: without its layers.
        layers: `eagle_program` on this cache, in which nothing attends to slots outside `is_known_S`.
    """

    def __init__(self, head: EagleHead, layers: DraftLayers, cache: TreeCache, is_known_S: Tensor) -> None:
        super().__init__(head.spec.body, cache, head.states, is_known_S)
        self.head = head
        self.layers = layers

    def compute(self, inputs: ForwardInput, states_TH: Tensor) -> ForwardOutput:
        """One pass; `features` of its output are the rows' next states, [T, 1, H]."""
        head = self.head
        outputs_TH = self.layers.run(inputs, states_TH, head.embed(self.ids(inputs.token_ids)))
        logits = head.logits(outputs_TH[len(outputs_TH) - inputs.num_logit_rows :])
        return ForwardOutput(logits=logits, features=head.next_states(outputs_TH)[:, None].clone())


def eagle_executor(
    spec: EagleSpec, weights: HeadWeights, embed: Embed, output: Linear, cache: TreeCache, *, backend: Backend
) -> HeadExecutor:
    """The head bound to its cache; a backend that runs programs of layers runs its layers."""
    is_known_S = all_known(cache)
    source = EagleWeights(weights, spec.body.hidden_size)
    layers = backend.draft_layers(spec.body, eagle_program(spec), source, cache, is_known_S)
    if layers is None:
        return EagleExecutor(TorchEagleHead(spec, weights, embed, output), cache)
    return ProgramEagleExecutor(EagleHead(spec, weights, embed, output), layers, cache, is_known_S)


class EagleRows(HeadRows):
    """Rows of an EAGLE-3 head, in which the rows of a tree stand behind the text.

    A drafted row starts from the state of its parent's row, because the target's feature is not known yet. So when a
    node is accepted its row is dropped, and its token is read again, with the target's feature, in the pass that
    expands the next root. (vLLM keeps such rows, which costs 8 to 15 % of the accepted tokens: vllm#14649.) The first
    token of a text never has a row.
    """

    lag = 1

    def __init__(self, runner: Runner, executor: HeadExecutor, features: TextFeatures, max_rows: int) -> None:
        self._states: Tensor  # [rows, H], the states from which children of expanded nodes start
        super().__init__(runner, executor, features, max_rows)

    def has_room(self, num_nodes: int) -> bool:
        return (self.is_rooted or self._root - 1 in self._features) and super().has_room(num_nodes)

    def told(self, tree: TokenTree, path: Iterable[int], places: dict[int, int], text: list[int]) -> None:
        assert not places, "a node's row is read again once it is accepted"
        if self.is_rooted:
            first = len(self._own.cached_ids)
            num_rows = self._rows[0] + 1
            self._own.keep(list(range(num_rows)), text[first : first + num_rows])
            self._features.drop_before(first + num_rows - 1)
        self._forget_nodes()
        self._root = len(text) - 1

    def _lacking(self, text: list[int]) -> list[int]:
        while any(place - 1 not in self._features for place in range(len(self._own.cached_ids), len(text) - 1)):
            self._read(text, 1)
        return super()._lacking(text)

    def _run(self, tree: TokenTree, batch: list[int], inputs: ForwardInput) -> Tensor:
        num_before = len(inputs.token_ids) - len(batch)
        num_real = num_before + (batch[0] == 0)  # the tokens before the root, and the root
        parents = [self._rows[tree.parents[node]] for node in batch if node]
        states = []
        if num_real:
            states.append(self._states_at([place - 1 for place in inputs.positions[:num_real]]))
        if parents:
            states.append(self._states[parents])
        logits, features = self._play(inputs, torch.cat(states))
        assert features is not None, "a head gives the states of its rows"
        self._states = torch.cat((self._states.to(features), features[:, 0]))
        return logits

    def _forget_nodes(self) -> None:
        super()._forget_nodes()
        self._states = torch.zeros(0)


class EagleDrafter(HeadDrafter):
    """Grows its tree with an EAGLE-3 head, one pass for each batch of nodes.

    Looked-up text is not hung into the tree: a chain is expanded in one pass, but each of its rows would have to start
    from the state of the row before it.
    """

    usual_acceptance = UsualAcceptance(kind="an EAGLE-3 head", low=70, high=95, floor=40)

    def _make_rows(self, runner: Runner, config: DraftHead) -> EagleRows:
        executor = runner.executor
        assert isinstance(executor, HeadExecutor), f"the executor of a head, not {type(executor)}"
        return EagleRows(runner, executor, self._features, serial_rows(config.shape))

    @property
    def round_plan(self) -> RoundPlan | None:
        return self._plan_of(self._config, kind="EAGLE-3", num_slots=serial_rows(self._config))


def load(stored: StoredHead, given: HeadLoading) -> HeadDrafter:
    """The drafter of a head for the target.

    Raises:
        CheckpointError, VocabularyError: the head was not made for this target.
    """
    spec = stored.spec
    assert isinstance(spec, EagleSpec), "an EAGLE-3 head"
    make_executor = partial(eagle_executor, backend=given.backend)
    num_behind = serial_rows(given.config.shape)
    return load_with_cache(
        stored, given, spec, num_behind=num_behind, make_executor=make_executor, drafter=EagleDrafter
    )
