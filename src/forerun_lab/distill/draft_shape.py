"""Chooses a target's draft: its tokens, its sizes by the times of passes, and its weights before training.

The target's first layers are the best start if they have the draft's width, else weights are random: after 100,000
tokens of training, a draft from SmolLM2's first two layers guesses 24 % of its next tokens right, a draft from the
first and a late layer 12 % (docs/log.md).

Legend: V the target's vocabulary, W the draft's, H the target's hidden size, h the draft's.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from forerun.checkpoints.huggingface.names import fused_shapes, tensor_plan
from forerun.checkpoints.typed_weights import LoadedWeights
from forerun.core.errors import require
from forerun.core.mechanisms import mechanisms_of
from forerun.core.model_spec import ModelSpec, RopeSpec
from forerun.engine.model_loading import Checkpoint
from forerun.model.pass_times import measure_pace
from forerun.model.runner import Runner
from forerun.model.vocabulary_map import VocabularyMap
from forerun_lab.distill.writer import WrittenText

CHUNK: Final = 4096  # unknown tokens compared at once
COVERED: Final = 0.985  # share of the target's output that the draft's tokens cover
STEP: Final = 1024  # vocabulary sizes are multiples of this


def count_tokens(texts: Iterable[WrittenText], vocab_size: int) -> Tensor:
    """float64 [V]: the expected count of each token, summed from the target's probabilities over all rows."""
    counts_V = torch.zeros(vocab_size, dtype=torch.float64)
    for text in texts:
        ids = text.top_ids[text.first_row :]
        chances = text.top_log_probs[text.first_row :].double().exp()
        counts_V.index_add_(0, ids.flatten().long(), chances.flatten())
    return counts_V


def enough_tokens(counts_V: Tensor) -> int:
    """How many of the most frequent tokens make up the share `COVERED` of all counts."""
    shares_V = counts_V.sort(descending=True).values.cumsum(0) / counts_V.sum()
    num_tokens = int((shares_V < COVERED).sum()) + 1
    return min(-(-num_tokens // STEP) * STEP, len(counts_V))


def choose_vocabulary(counts_V: Tensor, num_tokens: int, always: Sequence[int], embedding_VH: Tensor) -> VocabularyMap:
    """The `num_tokens` most frequent tokens, those of `always` included; other tokens map to the most similar of them.

    Args:
        embedding_VH: the target's embedding; similarity is the cosine of its rows.
    """
    ranked_V = counts_V.clone()
    ranked_V[list(always)] = torch.inf
    num_tokens = min(max(num_tokens, len(set(always))), len(counts_V))
    target_ids_W = ranked_V.topk(num_tokens).indices.sort().values
    directions_VH = functional.normalize(embedding_VH.float(), dim=1)
    known_WH = directions_VH[target_ids_W]
    nearest = [(chunk @ known_WH.T).argmax(1) for chunk in torch.split(directions_VH, CHUNK)]
    draft_ids_V = torch.cat(nearest)
    draft_ids_V[target_ids_W] = torch.arange(len(target_ids_W), device=draft_ids_V.device)
    return VocabularyMap(target_ids=target_ids_W.int(), draft_ids=draft_ids_V.int())


COST_SHARE: Final = 0.1  # of the target's pass of one row
MAX_LAYERS = 4
MIN_LAYERS = 2
WIDTH_SHARES: Final = (0.75, 0.5, 0.375, 0.25)  # of the target's hidden size
MLP_RATIO: Final = 8 / 3  # MLP size over hidden size, as in Llamas
MIN_WIDTH: Final = 64
HEAD_SIZE: Final = 64  # largest head of a narrow draft, so that it has enough heads


def choose_sizes(
    target: ModelSpec, vocab_size: int, pass_s: Callable[[ModelSpec], float], target_s: float
) -> ModelSpec:
    """The largest of the candidates whose pass costs at most `COST_SHARE` of the target's; else the smallest.

    Args:
        pass_s: measures a pass of a draft with these sizes, in seconds.
        target_s: seconds of a pass of the target.
    """
    candidates = list(candidate_drafts(target, vocab_size))
    for draft in candidates:
        if pass_s(draft) <= COST_SHARE * target_s:
            return draft
    return candidates[-1]


def candidate_drafts(target: ModelSpec, vocab_size: int) -> Iterator[ModelSpec]:
    """Drafts from large to small. The target's width comes first, because its layers can then be copied."""
    for num_layers in range(min(MAX_LAYERS, target.num_layers - 1), MIN_LAYERS - 1, -1):
        yield draft_spec(target, vocab_size, num_layers=num_layers)
    for share in WIDTH_SHARES:
        yield draft_spec(target, vocab_size, num_layers=MIN_LAYERS, hidden_size=int(target.hidden_size * share))


def draft_spec(target: ModelSpec, vocab_size: int, *, num_layers: int, hidden_size: int | None = None) -> ModelSpec:
    """A Llama with the target's layer shape, or a narrower one with heads of `head_size`."""
    alike = ModelSpec(
        family="llama",
        num_layers=num_layers,
        hidden_size=target.hidden_size,
        num_heads=target.num_heads,
        num_kv_heads=target.num_kv_heads,
        head_dim=target.head_dim,
        intermediate_size=target.intermediate_size,
        vocab_size=vocab_size,
        max_positions=target.max_positions,
        norm_eps=target.norm_eps,
        qkv_bias=target.qkv_bias,
        out_bias=target.qkv_bias,
        mlp_bias=target.mlp_bias,
        tied_embeddings=target.tied_embeddings,
        rope=RopeSpec(theta=target.rope.theta),
    )
    if hidden_size is None or hidden_size >= target.hidden_size:
        return alike
    head_dim = head_size(target)
    wanted = max(hidden_size, min(MIN_WIDTH, target.hidden_size))
    num_heads = max(1, round(wanted / head_dim))
    num_kv_heads = max(1, num_heads * target.num_kv_heads // target.num_heads)
    num_heads -= num_heads % num_kv_heads
    hidden_size = min(max(wanted, num_heads * head_dim), target.hidden_size)
    return replace(
        alike,
        hidden_size=hidden_size,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        intermediate_size=-(-int(hidden_size * MLP_RATIO) // 32) * 32,
    )


def head_size(target: ModelSpec) -> int:
    """The head size of a draft that is narrower than its target."""
    return min(target.head_dim, HEAD_SIZE)


def require_sizes(target: ModelSpec, hidden_size: int | None) -> None:
    """Refuse a width that no draft of this target can have.

    Raises:
        ConfigError: names the allowed widths.
    """
    if hidden_size is None or hidden_size == target.hidden_size:
        return
    step = head_size(target)
    least = min(MIN_WIDTH, target.hidden_size)
    require(
        least <= hidden_size < target.hidden_size and hidden_size % step == 0,
        f"hidden_size {hidden_size} must be a multiple of {step}, the size of a head, from {least} to below "
        f"{target.hidden_size}, or {target.hidden_size}, which is the target's",
    )


VOCABULARY: Final = ("embedding.weight", "head.weight")


def initial_weights(
    target: ModelSpec, weights: Mapping[str, Tensor], draft: ModelSpec, vocabulary: VocabularyMap, seed: int
) -> dict[str, Tensor]:
    """float32 weights of `draft`, keyed by the names of `tensor_plan`.

    Args:
        weights: the target's weights.
    """
    ids_W = vocabulary.target_ids.long()
    directions_Hh = main_directions(weights["embedding.weight"].float()[ids_W], draft.hidden_size)
    is_plain = not target.qk_norm and not mechanisms_of(target, target.max_positions) and not target.unrotated_layers
    is_alike = is_plain and shape_of_layer(draft) == shape_of_layer(target)
    shapes = fused_shapes(tensor_plan(draft))
    random = torch.Generator().manual_seed(seed)
    given = {name: weights[name].float()[ids_W] @ directions_Hh for name in VOCABULARY if name in weights}
    if is_alike:
        given |= {name: weights[name].float() for name in shapes if name in weights and name not in VOCABULARY}
    return {
        name: given[name].cpu() if name in given else fresh_weight(name, shape, random)
        for name, shape in shapes.items()
    }


def shape_of_layer(spec: ModelSpec) -> tuple[int, ...]:
    """The sizes that two models must share for one to copy a layer of the other."""
    return spec.hidden_size, spec.num_heads, spec.num_kv_heads, spec.head_dim, spec.intermediate_size


def main_directions(embedding_WH: Tensor, num_directions: int) -> Tensor:
    """Orthonormal [H, h]: the directions in which tokens differ most; the identity if h equals H."""
    num_all = embedding_WH.shape[1]
    if num_directions == num_all:
        return torch.eye(num_all, device=embedding_WH.device)
    vectors: Tensor = torch.linalg.eigh(embedding_WH.T @ embedding_WH).eigenvectors
    return vectors[:, num_all - num_directions :]


def fresh_weight(name: str, shape: tuple[int, ...], random: torch.Generator) -> Tensor:
    """Random for a matrix, ones for a norm, zeros for a bias."""
    if len(shape) == 2:
        weight: Tensor = torch.randn(shape, generator=random) * (0.5 * shape[1] ** -0.5)
        return weight
    return torch.zeros(shape) if name.endswith(".bias") else torch.ones(shape)


CONTEXT: Final = 256  # tokens before the measured row


class PassTimes:
    """Measures forward passes of one row, with the kernels used for decoding."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint

    def of_target(self) -> float:
        """Seconds of a pass."""
        return self._time(self._checkpoint.load(exactness="fast", capacity=2 * CONTEXT))

    def of_draft(self, spec: ModelSpec) -> float:
        """Seconds of a pass, with random weights."""
        device = self._checkpoint.device
        dtype = self._checkpoint.dtype
        shapes = fused_shapes(tensor_plan(spec))
        random = torch.Generator().manual_seed(0)
        weights = {name: fresh_weight(name, shape, random).to(device, dtype) for name, shape in shapes.items()}
        backend = self._checkpoint.choose_backend("fast").backend
        return self._time(
            Runner(spec, LoadedWeights(weights), backend=backend, capacity=2 * CONTEXT, dtype=dtype, device=device)
        )

    def _time(self, runner: Runner) -> float:
        return measure_pace(runner, [1], context=CONTEXT).step_s(1)
