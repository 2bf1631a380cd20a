"""Training a draft head on its target's features and next-token probabilities.

Legend: B texts at once, T tokens of the longest, R rows of a step, N rows to learn from, F features of a token,
H hidden size, W the head's tokens.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from forerun.core.machine import free_memory_bytes
from forerun.drafting.heads.layer import Embed, HeadWeights, Linear, embedding, plain_linear
from forerun.model.rope import rope_table
from forerun.model.vocabulary_map import VocabularyMap
from forerun_lab.distill.network import HeadNetwork, Network, fastest_dtype
from forerun_lab.distill.trainer import Lesson, Trainer
from forerun_lab.distill.writer import WrittenText

KEPT_BYTES: Final = 2**33  # of features in memory, on a CPU, where computing them takes longer than learning from them
KEPT_SHARE: Final = 2  # features fill at most half of the memory that is free at the start
FEW_ROWS = 1024  # least rows learnt from in a step: logits take time and memory
ROW_SHARE = 3 / 8  # of a step's tokens, if that is more
MOST_AHEAD: Final = 128  # positions behind a text that a head drafts


class HeadTrainer(Trainer):
    """A head, its optimizers, and the state of its training; the target computes the features of every batch.

    Each kind of head drafts in its own way, by `rows`.
    """

    def __init__(self, network: HeadNetwork, vocabulary: VocabularyMap, target: Network, *, device: str) -> None:
        super().__init__(network, vocabulary, device=device)
        self._head = network
        self._target = target.to(device)
        spec = network.spec
        self._taps = spec.taps(target.spec.num_layers)
        body = spec.body
        self._cos_sin = rope_table(
            body.rope, body.head_dim, body.max_positions + MOST_AHEAD, dtype=torch.float32, device=device
        )
        self._random = torch.Generator().manual_seed(1)
        self._kept = dict[WrittenText, Tensor]()  # features [T, F, H] of texts, while there is room
        self._most_bytes = min(KEPT_BYTES, (free_memory_bytes() or 0) // KEPT_SHARE) if self._is_cpu else 0
        self._most_rows = max(FEW_ROWS, int(ROW_SHARE * self.tokens_per_step))

    @abstractmethod
    def rows(self, ids_BT: Tensor, is_learnt_BT: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        """Logits [N, W] of the tokens that the head drafts; the text and place of the token that each row follows."""

    def _recall(self, texts: Sequence[WrittenText]) -> tuple[Tensor, Lesson]:
        """The head's log-probabilities [N, W] and the target's probabilities for the rows to learn from."""
        dtype = fastest_dtype(self._device)
        kind = torch.device(self._device).type
        ids_BT, is_learnt_BT = self._pad(texts)
        features = self._features(texts, ids_BT).float()
        with torch.autocast(kind, torch.bfloat16, enabled=dtype is torch.bfloat16):
            logits, places_N2 = self.rows(ids_BT, is_learnt_BT, features)
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
