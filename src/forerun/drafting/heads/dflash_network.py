"""A DFlash head: one pass over masked rows predicts the next tokens at once. DFlash 2 adds convolutions
around the sublayers, and scores of pairs of consecutive tokens; DSpark shifts the logits by the token before.

Legend: T rows, B rows of a pass (the last committed token, and masked ones), S slots, H hidden size of the head,
F features of a token, G size of a feature, O taps of a convolution, C groups of channels, W rows of the output,
P tokens that are paired, R size of a token's code.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from time import perf_counter
from typing import Final, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from forerun.backends.device_rounds import RoundPlan
from forerun.core.drafter_config import MOST_CHILDREN, DraftHead
from forerun.core.pace import Pace
from forerun.core.sublayers import SkipSet
from forerun.core.threads import inference
from forerun.drafting.draft_model import UsualAcceptance
from forerun.drafting.drafter import Measure
from forerun.drafting.heads.dflash import DFlashSpec
from forerun.drafting.heads.drafter import HeadDrafter
from forerun.drafting.heads.executor import HeadExecutor, rotations, without_waking
from forerun.drafting.heads.features import TextFeatures
from forerun.drafting.heads.kind import StoredHead
from forerun.drafting.heads.layer import Embed, HeadLayer, HeadWeights, Linear, attend, rms
from forerun.drafting.heads.loading import HeadLoading, load_with_cache
from forerun.drafting.heads.rows import HeadRows
from forerun.drafting.policies import TreePolicy
from forerun.model.executor import ForwardInput, ForwardOutput, Observer
from forerun.model.runner import Runner
from forerun.model.tree_cache import TreeCache
from forerun.speculation.referee.budget import DraftCosts, RowBudget
from forerun.speculation.tree import TokenTree

EXPANSION: Final = Pace(steps=((1, 100e-6), (8, 200e-6)))  # seconds, of ranking rows of 50,000 logits; then measured
BATCH: Final = 8  # nodes that a step on a GPU expands; it has room for 16 children of each
Mix: TypeAlias = Callable[[int, Tensor, Tensor, Tensor], Tensor]  # a layer's queries, keys and values to its mixture


class DFlashHead:
    """The formulas of a head; where keys and values are kept is the caller's business.

    The first row of a pass holds the last committed token; see `DFlashSpec.drafts_from_root` for what rows predict.

    Args:
        weights, embed, head: see `EagleHead`.
    """

    def __init__(self, spec: DFlashSpec, weights: HeadWeights, embed: Embed, head: Linear) -> None:
        self.spec = spec
        self._weights = weights
        self._embed = embed
        self._head = head
        self._fc = weights.linear("fc")
        if spec.conv_kernel:
            self._dynamic = {
                f"layers.{idx}.{name}": weights.linear(f"layers.{idx}.{name}.kernel_projection")
                for idx in range(spec.body.num_layers)
                for name in ("attention_conv", "mlp_conv")
            }
        if spec.markov_rank:
            self._shift = weights.linear("markov_head.markov_w2")
        if spec.has_markov_gate:
            self._gate = weights.linear("markov_head.gate_proj")
        self._layers = [HeadLayer(weights, f"layers.{idx}.", spec.body) for idx in range(spec.body.num_layers)]

    def states(self, features: Tensor) -> Tensor:
        """[..., T, H], what the head reads of the target's features [..., T, F, G]."""
        return self._norm("hidden_norm.weight", self._fc(features.flatten(-2)))

    def text_kv(self, states: Tensor, cos_sin: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Every layer's keys and values of committed tokens, which are made from the states as they are."""
        return [layer.qkv(states, cos_sin)[1:] for layer in self._layers]

    def outputs(self, ids: Tensor, cos_sin: Tensor, mix: Mix) -> Tensor:
        """The normalised outputs [..., B, H] of a pass.

        Args:
            mix: attention of its rows to the text and to each other, given the index of a layer.
        """
        stream = self._embed(ids) * self.spec.embedding_scale
        for idx, layer in enumerate(self._layers):
            x = layer.norm("input_layernorm", stream)
            entering, leaving = self._convolutions(f"layers.{idx}.attention_conv", x)
            stream = stream + leaving(layer.attended(mix(idx, *layer.qkv(entering(x), cos_sin))))
            x = layer.norm("post_attention_layernorm", stream)
            entering, leaving = self._convolutions(f"layers.{idx}.mlp_conv", x)
            stream = stream + leaving(layer.mlp(entering(x)))
        return self._norm("norm.weight", stream)

    def logits(self, outputs: Tensor) -> Tensor:
        """[..., T, W] of normalised outputs."""
        logits = self._head(outputs) * self.spec.logit_scale
        cap = self.spec.logit_cap
        return cap * (logits / cap).tanh() if cap else logits

    def logits_after(self, logits_TW: Tensor, outputs_TH: Tensor, parents_T: Tensor) -> Tensor:
        """Logits [T, W] given each row's parent token, in float32 at least if the head looks at it."""
        if self.spec.pair_rank:
            return self._paired(logits_TW, outputs_TH, parents_T)
        return self._shifted(logits_TW, outputs_TH, parents_T) if self.spec.markov_rank else logits_TW

    def _shifted(self, logits_TW: Tensor, outputs_TH: Tensor, parents_T: Tensor) -> Tensor:
        """Logits shifted by the parent's code. Source: speculators' dspark/model_definitions.py."""
        codes_TR = self._weights["markov_head.markov_w1.weight"][parents_T]
        if self.spec.has_markov_gate:
            codes_TR = codes_TR * self._gate(torch.cat((outputs_TH, codes_TR), -1)).sigmoid()
        return logits_TW.to(torch.promote_types(logits_TW.dtype, torch.float32)) + self._shift(codes_TR)

    def _paired(self, logits_TW: Tensor, outputs_TH: Tensor, parents_T: Tensor) -> Tensor:
        """The logits of the best tokens with the score of the pair, and no others."""
        weights = self._weights
        part = "candidate_selector."
        best_TP, ids_TP = logits_TW.to(torch.promote_types(logits_TW.dtype, torch.float32)).topk(
            min(self.spec.num_pairs, logits_TW.shape[1])
        )
        asked_TR = functional.linear(outputs_TH, weights[part + "hidden_projection.weight"])
        asked_TR = asked_TR * weights[part + "predecessor_codebook"][parents_T]
        pairs_TP = (weights[part + "successor_codebook"][ids_TP] @ asked_TR[..., None]).squeeze(-1)
        return torch.full_like(logits_TW, -math.inf, dtype=best_TP.dtype).scatter(1, ids_TP, best_TP + pairs_TP)

    def _convolutions(self, name: str, x: Tensor) -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]:
        """The convolutions before and after a sublayer, whose weights depend on its input x [..., B, H]."""
        spec = self.spec
        if not spec.conv_kernel:
            return same, same
        base_2OH = self._weights[f"{name}.base_kernel"]
        flat = self._dynamic[name](x)
        dynamic = flat.view(*flat.shape[:-1], 2, spec.conv_kernel, -1)  # [..., B, 2, O, C]

        def convolved(side: int, rows: Tensor) -> Tensor:
            weights = base_2OH[side] + dynamic[..., side, :, :].repeat_interleave(spec.conv_group, -1)  # [..., B, O, H]
            shifted = [
                functional.pad(rows, (0, 0, tap, 0))[..., : rows.shape[-2], :] for tap in range(spec.conv_kernel)
            ]
            return (torch.stack(shifted, -2) * weights).sum(-2)

        return lambda rows: convolved(0, rows), lambda rows: convolved(1, rows)

    def _norm(self, name: str, x: Tensor) -> Tensor:
        return rms(x, self._weights[name], self.spec.body.norm_eps)


def same(rows: Tensor) -> Tensor:
    """The rows as they are."""
    return rows


class DFlashExecutor(HeadExecutor):
    """A DFlash head with its cache, which holds keys and values of committed tokens alone.

    The token at place p of the text stands in slot p.
    """

    def __init__(self, head: DFlashHead, cache: TreeCache) -> None:
        super().__init__(head.spec.body, cache, head.states)
        self.head = head
        self.num_rows = head.spec.block_size
        self.num_drafted = head.spec.num_drafted
        self.mask_token_id = head.spec.mask_token_id
        self.cos_sin_P2D = rotations(head.spec.body, cache)

    def run(self, inputs: ForwardInput, observe: Observer | None = None) -> ForwardOutput:
        """One pass behind the text; see `predict`."""
        ids_B = self.ids(inputs.token_ids)
        places_B = self.ids(inputs.positions)
        with inference():
            return without_waking(len(ids_B), lambda: self.predict(ids_B, places_B, inputs.num_slots))

    def predict(self, ids_B: Tensor, places_B: Tensor, num_seen: int) -> ForwardOutput:
        """One pass behind the text, whose keys and values stand in the slots behind it until text does.

        Args:
            places_B: places in a row.
            num_seen: slots that are looked at; the pass's own are among them.

        Returns:
            logits [D, W] for the D tokens behind the text that the head predicts, and as `features` their outputs.
        """
        places_S = torch.arange(num_seen, device=self.device)
        is_behind_S = places_S >= places_B[0]
        is_there_S = torch.where(is_behind_S, places_S <= places_B[-1], self.is_known_S[:num_seen])

        def mix(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys_SKD, values_SKD = self._write(layer, places_B, k, v)
            sees_BS = self._visible(layer, places_S, places_B[:, None]) & is_there_S
            return attend(q, keys_SKD[:num_seen], values_SKD[:num_seen], sees_BS)

        outputs_BH = self.head.outputs(ids_B, self.cos_sin_P2D[places_B], mix)
        outputs_BH = outputs_BH[-self.head.spec.num_drafted :]
        return ForwardOutput(logits=self.head.logits(outputs_BH), features=outputs_BH[:, None])

    def compute(self, inputs: ForwardInput, states_TH: Tensor) -> ForwardOutput:
        """Write the keys and values of committed tokens."""
        places_T = self.ids(inputs.positions)
        self.write_text(states_TH, places_T, places_T)
        return ForwardOutput(logits=states_TH.new_zeros(0, 0))

    def write_text(self, states_TH: Tensor, slots_T: Tensor, places_T: Tensor) -> None:
        """Write the keys and values of tokens at these places of the text into these slots."""
        for layer, (k, v) in enumerate(self.head.text_kv(states_TH, self.cos_sin_P2D[places_T])):
            self._write(layer, slots_T, k, v)

    def logits_after(self, logits_TW: Tensor, outputs_TH: Tensor, parents_T: Tensor) -> Tensor:
        """See `DFlashHead.logits_after`."""
        return self.head.logits_after(logits_TW, outputs_TH, parents_T)

    def _write(self, layer: int, slots_T: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        keys_SKD = self.cache.keys_LSKD[layer]
        values_SKD = self.cache.values_LSKD[layer]
        return keys_SKD.index_copy_(0, slots_T, k), values_SKD.index_copy_(0, slots_T, v)

    def _visible(self, layer: int, places_S: Tensor, own_B1: Tensor) -> Tensor:
        """bool [B, S]: the places that a layer's rows look at."""
        spec = self.head.spec
        window = spec.windows[layer]
        is_near_BS = (places_S - own_B1).abs() < (len(places_S) if window is None else window)
        return is_near_BS & (places_S <= own_B1) if spec.is_causal[layer] else is_near_BS


class DFlashRows(HeadRows):
    """The rows of a DFlash head: the cache holds committed tokens alone, and one pass drafts a whole tree.

    Args:
        executor: the head.
    """

    def __init__(self, runner: Runner, executor: DFlashExecutor, features: TextFeatures, max_rows: int) -> None:
        super().__init__(runner, executor, features, max_rows)
        self._head = executor.head
        self._dflash = executor
        self.num_drafted = executor.head.spec.num_drafted
        self._drafted: tuple[Tensor, Tensor] | None = None  # the pass's logits and outputs

    @property
    def is_rooted(self) -> bool:
        """True once the tokens behind the root were predicted."""
        return self._drafted is not None

    def has_room(self, num_nodes: int) -> bool:
        return self.is_rooted

    def start_text(self, text: list[int], owner: str) -> None:
        super().start_text(text, owner)
        self._drafted = None

    def draft(self, text: list[int]) -> bool:
        """Predict the tokens behind the root, the last token of `text`; False if the feature before it is missing."""
        while self._read(text, 1):
            pass
        root = len(text) - 1
        is_read = 0 < root == len(self._own.cached_ids) and bool(self._executor.is_known_S[root - 1])
        if self._drafted is not None or not is_read:
            return self._drafted is not None
        spec = self._head.spec
        inputs = ForwardInput(
            token_ids=[text[-1], *[spec.mask_token_id] * (spec.block_size - 1)],
            positions=list(range(root, root + spec.block_size)),
            first_slot=root,
            prefix_len=root,
            num_logit_rows=spec.num_drafted,
        )
        output = self._own.forward(inputs)
        self._own.drop_rows()
        assert output.features is not None, "the outputs of a pass"
        self._drafted = output.logits, output.features[:, 0]
        return True

    def expand(
        self, tree: TokenTree, batch: list[int], token_ids: list[int], text: list[int], skipped: SkipSet
    ) -> Tensor:
        """Logits of the next token after each node of `batch`; none is likely after the last predicted token."""
        assert self._drafted is not None, "a tree grows in predicted distributions"
        logits, outputs = self._drafted
        rows = [min(tree.depths[node], len(logits) - 1) for node in batch]
        parents = self._dflash.ids([tree.token_ids[node] for node in batch])
        after = self._head.logits_after(logits[rows], outputs[rows], parents)
        is_beyond = [tree.depths[node] >= len(logits) for node in batch]
        if any(is_beyond):
            after = after.masked_fill(torch.tensor(is_beyond, device=after.device)[:, None], float("-inf"))
        return after

    def told(self, tree: TokenTree, path: Iterable[int], places: dict[int, int], text: list[int]) -> None:
        assert not places, "tokens are predicted behind one root"
        self._drafted = None
        self._root = len(text) - 1


class DFlashDrafter(HeadDrafter):
    """Grows its tree in the distributions of a DFlash head, which one pass gives for all places behind the root.

    As the growth is best-first and expands without cost, the tree holds the nodes of the largest joint probabilities,
    at temperature > 0 with the target's noise. Source: DDTree, arXiv 2604.12989, which does not know the noise.
    """

    usual_acceptance = UsualAcceptance(kind="a DFlash head", low=70, high=95, floor=40)

    def _make_rows(self, runner: Runner, config: DraftHead) -> DFlashRows:
        executor = runner.executor
        assert isinstance(executor, DFlashExecutor), f"the executor of a DFlash head, not {type(executor)}"
        self._predicting = DFlashRows(runner, executor, self._features, 0)
        return self._predicting

    def _suited(self, policy: TreePolicy, config: DraftHead) -> TreePolicy:
        num_children = max(1, min(config.verify_width - 1, MOST_CHILDREN))
        return replace(policy, min_mass=0.0, num_children=num_children)

    @property
    def round_plan(self) -> RoundPlan | None:
        depth = num_steps(self._predicting.num_drafted, self.verify_width)
        return self._plan_of(replace(self._config, draft_width=BATCH, depth=depth), kind="DFlash")

    def measure_costs(self, measure: Measure) -> DraftCosts:
        return DraftCosts(expansion=EXPANSION)

    def _grow(self, budget: RowBudget) -> None:
        if self.verify_width == 1:  # no guess would be verified, so only text is read
            super()._grow(budget)
            return
        began = perf_counter()
        self._predicting.draft(self._draft.token_ids)
        budget.spend(perf_counter() - began)
        while self._draft.expand(budget):
            pass


def num_steps(num_drafted: int, verify_width: int) -> int:
    """How many batches lead to the same tree as expanding until nothing could change it.

    The last node found has at most `longest` nodes above it, each expanded in a step of its own. The next of them is
    left out of a batch only if all of the batch is likelier, so that these are nodes of the tree, too.
    """
    longest = min(num_drafted, verify_width - 1)
    return max(1, longest + (verify_width - 1 - longest) // BATCH)


def dflash_executor(
    spec: DFlashSpec, weights: HeadWeights, embed: Embed, output: Linear, cache: TreeCache
) -> DFlashExecutor:
    """The head bound to its cache."""
    return DFlashExecutor(DFlashHead(spec, weights, embed, output), cache)


def load(stored: StoredHead, given: HeadLoading) -> HeadDrafter:
    """The drafter of a head for the target.

    Raises:
        CheckpointError, VocabularyError: the head was not made for this target.
    """
    spec = stored.spec
    assert isinstance(spec, DFlashSpec), "a DFlash head"
    return load_with_cache(
        stored, given, spec, num_behind=spec.block_size, make_executor=dflash_executor, drafter=DFlashDrafter
    )
