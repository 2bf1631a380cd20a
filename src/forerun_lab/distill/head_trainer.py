"""Training a draft head on its target's features and next-token probabilities.

Legend: B texts at once, T tokens of the longest, R rows of a step, N rows to learn from, A anchors of a text, K rows of
a DFlash pass, F features of a token, H hidden size, W the head's tokens.
"""

from collections.abc import Sequence
from functools import partial
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from forerun.core.machine import free_memory_bytes
from forerun.drafting.heads.dflash import DFlashSpec
from forerun.drafting.heads.dflash_network import DFlashHead
from forerun.drafting.heads.eagle import EagleSpec
from forerun.drafting.heads.eagle_network import TorchEagleHead
from forerun.drafting.heads.layer import Embed, HeadWeights, Linear, attend, embedding, plain_linear
from forerun.model.rope import rope_table
from forerun.model.vocabulary_map import VocabularyMap
from forerun_lab.distill.network import HeadNetwork, Network, fastest_dtype
from forerun_lab.distill.trainer import Lesson, Trainer
from forerun_lab.distill.writer import WrittenText

NUM_STEPS: Final = 5  # tokens in a row that an EAGLE-3 head learns to draft from its own states
STEP_SHARE: Final = 0.8  # of drafts that reach a next step, and of rows learnt from there
KEPT_BYTES: Final = 2**33  # of features in memory, on a CPU, where computing them takes longer than learning from them
KEPT_SHARE: Final = 2  # features fill at most half of the memory that is free at the start
FEW_ROWS = 1024  # least rows learnt from in a step: logits take time and memory
ROW_SHARE = 3 / 8  # of a step's tokens, if that is more
HELD_BYTES: Final = 2**28  # of a step's attention scores; all steps together hold 7 times as much for the backward pass


class HeadTrainer(Trainer):
    """A head, its optimizers, and the state of its training; the target computes the features of every batch.

    An EAGLE-3 head drafts up to NUM_STEPS tokens after every token of a text, from its own states as in decoding (the
    training-time test of arXiv 2503.01840). A DFlash head drafts its tokens after some tokens.
    """

    def __init__(self, network: HeadNetwork, vocabulary: VocabularyMap, target: Network, *, device: str) -> None:
        super().__init__(network, vocabulary, device=device)
        self._head = network
        self._target = target.to(device)
        spec = network.spec
        self._taps = spec.taps(target.spec.num_layers)
        body = spec.body
        self._cos_sin = rope_table(
            body.rope, body.head_dim, body.max_positions + max(NUM_STEPS, 128), dtype=torch.float32, device=device
        )
        self._random = torch.Generator().manual_seed(1)
        self._kept = dict[WrittenText, Tensor]()  # features [T, F, H] of texts, while there is room
        self._most_bytes = min(KEPT_BYTES, (free_memory_bytes() or 0) // KEPT_SHARE) if self._is_cpu else 0
        self._most_rows = max(FEW_ROWS, int(ROW_SHARE * self.tokens_per_step))

    def _recall(self, texts: Sequence[WrittenText]) -> tuple[Tensor, Lesson]:
        """The head's log-probabilities [N, W] and the target's probabilities for the rows to learn from."""
        dtype = fastest_dtype(self._device)
        kind = torch.device(self._device).type
        ids_BT, is_learnt_BT = self._pad(texts)
        features = self._features(texts, ids_BT).float()
        with torch.autocast(kind, torch.bfloat16, enabled=dtype is torch.bfloat16):
            spec = self._head.spec
            rows = self._drafted if isinstance(spec, EagleSpec) else self._anchored
            logits, places_N2 = rows(ids_BT, is_learnt_BT, features)
        first = torch.tensor([0, *[len(text.token_ids) for text in texts]]).cumsum(0)
        flat_N = (first[places_N2[:, 0].cpu()] + places_N2[:, 1].cpu()).long()
        top_ids = torch.cat([text.top_ids for text in texts])[flat_N]
        top = torch.cat([text.top_log_probs for text in texts])[flat_N]
        lesson = Lesson.of(top_ids.to(self._device), top.to(self._device), self.vocabulary)
        return logits.float().log_softmax(-1), lesson

    @torch.no_grad()
    def _features(self, texts: Sequence[WrittenText], ids_BT: Tensor) -> Tensor:
        """The target's features [B, T, F, H], computed for the texts whose features are not in memory."""
        found = {text: self._kept[text] for text in texts if text in self._kept}
        new = {number: text for number, text in enumerate(texts) if text not in found}
        if new:
            features = self._target.features(ids_BT[[*new]], self._taps)
            computed = {text: part[: len(text.token_ids)] for text, part in zip(new.values(), features, strict=True)}
            bytes_of_token = features[0, 0].numel() * features.element_size()
            if sum(map(len, self._kept.values())) * bytes_of_token < self._most_bytes:
                self._kept |= computed
            found |= computed
        return torch.nn.utils.rnn.pad_sequence([found[text] for text in texts], batch_first=True)

    def _read(self, token_ids_T: Tensor) -> Tensor:
        return token_ids_T

    def _drafted(self, ids_BT: Tensor, is_learnt_BT: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        """Logits [N, W] of an EAGLE-3 head at all steps, and the text and place of the token that each row follows."""
        spec = self._head.spec
        assert isinstance(spec, EagleSpec)
        num_rows = ids_BT.shape[1] - 1  # a row starts from the feature of the token before
        if not num_rows:
            return features.new_zeros(0, spec.body.vocab_size), ids_BT.new_zeros(0, 2)
        head = TorchEagleHead(spec, *self._parts())
        states = head.states(features[:, :-1])
        known = [list[tuple[Tensor, Tensor]]() for _ in range(spec.body.num_layers)]  # of each layer, step by step
        logits = []
        places = []
        num_steps = min(num_rows, self._draw_steps() if torch.is_grad_enabled() else NUM_STEPS)
        for step in range(num_steps):
            ids_BR = functional.pad(ids_BT[:, 1 + step :], (0, step))

            def mix(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
                known[layer].append((k, v))
                return attend_in_parts(q, known[layer])

            cos_sin = self._cos_sin[torch.arange(num_rows, device=ids_BT.device) + 1 + step]
            outputs_BRH = head.step(ids_BR, states, cos_sin, mix)
            most = int(self._most_rows * STEP_SHARE**step * (1 - STEP_SHARE) / (1 - STEP_SHARE**num_steps))
            chosen = self._some(functional.pad(is_learnt_BT[:, 1 + step :], (0, step)), most)
            logits.append(head.logits(outputs_BRH[chosen[:, 0], chosen[:, 1]]))
            places.append(chosen + torch.tensor([0, 1 + step], device=chosen.device))
            states = head.next_states(outputs_BRH)
        return torch.cat(logits), torch.cat(places)

    def _draw_steps(self) -> int:
        """Between 1 and NUM_STEPS, each further step with probability STEP_SHARE."""
        goes_on = torch.rand(NUM_STEPS - 1, generator=self._random) < STEP_SHARE
        return 1 + int(goes_on.long().cumprod(0).sum())

    def _anchored(self, ids_BT: Tensor, is_learnt_BT: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        """Logits [N, W] of a DFlash head after some tokens; the text and place of the token that each row follows."""
        spec = self._head.spec
        assert isinstance(spec, DFlashSpec)
        head = DFlashHead(spec, *self._parts())
        size = spec.block_size
        num_rows = ids_BT.shape[1]
        device = ids_BT.device
        num_anchors = max(1, min(num_rows // size, self._most_rows // (size - 1) // len(ids_BT)))
        anchors_BA = torch.randint(1, max(2, num_rows - 1), (len(ids_BT), num_anchors), generator=self._random)
        anchors_BA = anchors_BA.clamp(max=num_rows - 1).to(device)
        places_BAK = anchors_BA[..., None] + torch.arange(size, device=device)
        ids_BAK = torch.full_like(places_BAK, spec.mask_token_id)
        ids_BAK[..., 0] = ids_BT.gather(1, anchors_BA)
        text = head.text_kv(head.states(features), self._cos_sin[:num_rows])
        before = torch.arange(num_rows, device=device) < anchors_BA[..., None]  # [B, A, T]
        same_pass = torch.eye(num_anchors, dtype=torch.bool, device=device).repeat_interleave(size, 1)
        sees = torch.cat((before, same_pass.expand(len(ids_BT), -1, -1)), -1).repeat_interleave(size, 1)

        def mix(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys, values = (
                torch.cat((old, new.flatten(1, 2)), 1) for old, new in zip(text[layer], (k, v), strict=True)
            )
            return attend(q.flatten(1, 2), keys, values, sees).view(*q.shape[:3], -1)

        outputs = head.outputs(ids_BAK, self._cos_sin[places_BAK], mix)
        follows_BAK = places_BAK - 1
        is_in = (follows_BAK < num_rows) & (torch.arange(size, device=device) > 0)
        learnt = is_learnt_BT.gather(1, follows_BAK.flatten(1).clamp(0, num_rows - 1)).view_as(is_in) & is_in
        chosen = learnt.nonzero()
        rows = chosen.unbind(1)
        return head.logits(outputs[rows]), torch.stack((chosen[:, 0], follows_BAK[rows]), 1)

    def _parts(self) -> tuple[HeadWeights, Embed, Linear]:
        """Weights, embedding and output; the last two may be the target's, which do not change."""
        weights = HeadWeights(self._head.live())
        own = [name in weights for name in ("embed_tokens.weight", "lm_head.weight")]
        table = weights["embed_tokens.weight"] if own[0] else self._target.table
        return weights, embedding(table), weights.linear("lm_head") if own[1] else plain_linear(self._target.output)

    def _some(self, is_learnt_BR: Tensor, most: int) -> Tensor:
        """[N, 2]: at most `most` of these rows, chosen at random."""
        rows = is_learnt_BR.nonzero()
        order = torch.randperm(len(rows), generator=self._random)[:most]
        return rows[order.to(rows.device)]


def attend_in_parts(q: Tensor, known: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """`attend_to_text_and_own_steps`; scores of more than HELD_BYTES are computed for some of the texts at a time, and
    again in the backward pass."""
    num_parts = -(-q[..., 0].numel() * q.shape[1] * q.element_size() // HELD_BYTES)
    if num_parts <= 1:
        return attend_to_text_and_own_steps(q, known)
    known_parts = zip(*(zip(k.chunk(num_parts), v.chunk(num_parts), strict=True) for k, v in known), strict=True)
    compute = partial(checkpoint, attend_to_text_and_own_steps, use_reentrant=False, preserve_rng_state=False)
    return torch.cat(list(map(compute, q.chunk(num_parts), known_parts)))


def attend_to_text_and_own_steps(q: Tensor, known: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """Attention of a step's rows to the text up to their places and to the later steps of their own, [B, R, Q * D].

    Args:
        q: [B, R, Q, D].
        known: keys and values [B, R, K, D] of every step so far, the text's first.
    """
    num_texts, num_rows, _, head_dim = q.shape
    (text_k, text_v), *own = [(k.transpose(1, 2), v.transpose(1, 2)) for k, v in known]  # [B, K, R, D]
    num_kv_heads = text_k.shape[1]
    rows = q.view(num_texts, num_rows, num_kv_heads, -1, head_dim).permute(0, 2, 3, 1, 4) * head_dim**-0.5
    hidden_RR = torch.full((num_rows, num_rows), float("-inf"), dtype=rows.dtype, device=rows.device).triu(1)
    scores = [(rows.flatten(2, 3) @ text_k.transpose(2, 3)).unflatten(2, (-1, num_rows)) + hidden_RR]
    scores += [(rows * k[:, :, None]).sum(-1, keepdim=True) for k, _ in own]
    shares, *own_shares = torch.split(torch.cat(scores, -1).softmax(-1), [num_rows, *[1] * len(own)], -1)
    mixed: Tensor = (shares.flatten(2, 3) @ text_v).view_as(rows)
    for share, (_, v) in zip(own_shares, own, strict=True):
        mixed = mixed + share * v[:, :, None]
    return mixed.permute(0, 3, 1, 2, 4).reshape(num_texts, num_rows, -1)
