"""How a DFlash head is made, trained and written.

Legend: see `head_trainer`; A anchors of a text, K rows of a pass.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import torch
from torch import Tensor

from forerun.drafting.heads.dflash import DFlashSpec
from forerun.drafting.heads.dflash_network import DFlashHead
from forerun.drafting.heads.layer import attend
from forerun.model.vocabulary_map import VocabularyMap
from forerun_lab.distill.head_kind import NewHead, TrainableHead
from forerun_lab.distill.head_trainer import HeadTrainer

NUM_ROWS: Final = 8  # of a pass: a small head rarely guesses seven tokens right
NUM_LAYERS: Final = 2


class DFlashTrainer(HeadTrainer):
    """Drafts all tokens of a pass after some tokens of a text."""

    def rows(self, ids_BT: Tensor, is_learnt_BT: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        """Those after some tokens."""
        spec = self._head.spec
        assert isinstance(spec, DFlashSpec), "a head of this kind"
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


def choose(new: NewHead) -> DFlashSpec:
    """It masks with a token that the target hardly ever writes."""
    num_layers = new.num_layers or NUM_LAYERS
    return DFlashSpec(
        body=replace(new.body, num_layers=num_layers, qk_norm=True),
        target_hidden_size=new.body.hidden_size,
        layer_ids=tuple(layer - 1 for layer in new.entered),
        block_size=NUM_ROWS,
        mask_token_id=int(new.counts_V.argmin()),
        windows=(None,) * num_layers,
        is_causal=(False,) * num_layers,
    )


def start(weights: dict[str, Tensor], output_WH: Tensor) -> None:
    """It uses the target's own output."""


def published(tensors: Mapping[str, Tensor], vocabulary: VocabularyMap) -> dict[str, Tensor]:
    return dict(tensors)


def config(spec: DFlashSpec) -> dict[str, object]:
    return {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "block_size": spec.block_size,
        "dflash_config": {"mask_token_id": spec.mask_token_id, "target_layer_ids": spec.layer_ids},
    }


DFLASH: Final = TrainableHead(
    words="A DFlash head",
    spec=DFlashSpec,
    choose=choose,
    trainer=DFlashTrainer,
    start=start,
    published=published,
    config=config,
    has_all_tokens=True,
)
