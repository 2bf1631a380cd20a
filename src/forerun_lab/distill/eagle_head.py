"""How an EAGLE-3 head is made, trained and written.

Legend: see `head_trainer`; Q query heads, K heads of keys, D size of a head.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from forerun.drafting.heads.eagle import EagleSpec
from forerun.drafting.heads.eagle_network import TorchEagleHead
from forerun.model.vocabulary_map import VocabularyMap
from forerun_lab.distill.head_kind import NewHead, TrainableHead
from forerun_lab.distill.head_trainer import HeadTrainer

NUM_STEPS: Final = 5  # tokens in a row that the head learns to draft from its own states
STEP_SHARE: Final = 0.8  # of drafts that reach a next step, and of rows learnt from there
HELD_BYTES: Final = 2**28  # of a step's attention scores; all steps together hold 7 times as much for the backward pass


class EagleTrainer(HeadTrainer):
    """Drafts up to NUM_STEPS tokens after every token of a text, from the head's own states as in decoding.

    Source: the training-time test of EAGLE-3 (arXiv 2503.01840).
    """

    def rows(self, ids_BT: Tensor, is_learnt_BT: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        """Those of all steps."""
        spec = self._head.spec
        assert isinstance(spec, EagleSpec), "a head of this kind"
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


def choose(new: NewHead) -> EagleSpec:
    return EagleSpec(
        body=new.body,
        target_hidden_size=new.body.hidden_size,
        layer_ids=new.entered,
        num_taps=len(new.entered),
    )


def start(weights: dict[str, Tensor], output_WH: Tensor) -> None:
    """The output is the target's, and the features' norm the layer's."""
    weights["lm_head.weight"] = output_WH
    weights["layers.0.hidden_norm.weight"] = weights["layers.0.input_layernorm.weight"].clone()


def published(tensors: Mapping[str, Tensor], vocabulary: VocabularyMap) -> dict[str, Tensor]:
    """EAGLE's names, and the map of the head's tokens."""
    ids = vocabulary.target_ids.long().cpu()
    named = {
        f"midlayer.{name.removeprefix('layers.0.')}" if name.startswith("layers.0.") else name: tensor
        for name, tensor in tensors.items()
    }
    return {**named, "d2t": ids - torch.arange(len(ids)), "t2d": vocabulary.is_known.cpu()}


def config(spec: EagleSpec) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "draft_vocab_size": spec.body.vocab_size,
        "eagle_config": {"use_aux_hidden_state": True, "eagle_aux_hidden_state_layer_ids": spec.layer_ids},
    }


EAGLE3: Final = TrainableHead(
    words="An EAGLE-3 head",
    spec=EagleSpec,
    choose=choose,
    trainer=EagleTrainer,
    start=start,
    published=published,
    config=config,
    has_one_layer=True,
)
