"""Tiny random models in float64, built without a checkpoint, and the decode loop without a tokenizer."""

import random
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from forerun.backends.backend import Backend
from forerun.backends.choose import choose_backend
from forerun.checkpoints.huggingface.names import fused_shapes, tensor_plan
from forerun.checkpoints.typed_weights import LoadedWeights
from forerun.core.config import Exactness, SamplingParams
from forerun.core.model_spec import CacheFormat, ModelSpec, RopeSpec
from forerun.decoding.decoder import Request, Round
from forerun.decoding.drafters import Drafters
from forerun.decoding.host_loop import decode
from forerun.decoding.prefill import prefill
from forerun.decoding.verifier import Verifier
from forerun.drafting.drafter import NO_NEWS, Drafter, DraftOutcome, DraftReport
from forerun.model.executor import CacheMove, ForwardInput
from forerun.model.runner import Runner
from forerun.sampling.noise import KeyedNoise
from forerun.speculation.referee.budget import FREE, DraftCosts, ProposedTree, RowBudget
from forerun.speculation.referee.costs import RoundCosts
from forerun.speculation.referee.referee import Referee
from forerun.speculation.tree import TokenTree, ancestry_matrix
from forerun.speculation.walk import Acceptance

CAPACITY = 128
LOGIT_SPREAD = 2.0  # the logits' standard deviation: a few units, so that temperatures 0, 0.7 and 1 all matter

Weights = dict[str, Tensor]


def random_rope(rng: random.Random) -> RopeSpec:
    """Any kind of rotary embedding, its scalings set so that even short texts reach the stretched positions."""
    theta = rng.choice([100.0, 10_000.0])
    match rng.choice(["default", "linear", "llama3"]):
        case "linear":
            return RopeSpec(theta=theta, kind="linear", factor=rng.choice([2.0, 4.0]))
        case "llama3":
            return RopeSpec(
                theta=theta,
                kind="llama3",
                factor=8.0,
                low_freq_factor=1.0,
                high_freq_factor=4.0,
                original_max_positions=32,
            )
        case _:
            return RopeSpec(theta=theta)


def tiny_spec(rng: random.Random, **changes: object) -> ModelSpec:
    """A random architecture of at most three layers; `changes` fixes fields."""
    num_kv_heads = rng.choice([1, 2, 3])
    fields: dict[str, object] = {
        "family": "llama",
        "num_layers": rng.randint(1, 3),
        "hidden_size": rng.choice([8, 12, 20]),
        "num_heads": num_kv_heads * rng.choice([1, 2, 3]),
        "num_kv_heads": num_kv_heads,
        "head_dim": rng.choice([2, 4, 6, 8]),
        "intermediate_size": rng.choice([7, 16, 24]),
        "vocab_size": rng.randint(3, 60),
        "max_positions": CAPACITY,
        "norm_eps": 1e-5,
        "qkv_bias": rng.random() < 0.4,
        "out_bias": rng.random() < 0.2,
        "mlp_bias": rng.random() < 0.2,
        "qk_norm": rng.random() < 0.4,
        "tied_embeddings": rng.random() < 0.5,
        "rope": random_rope(rng),
    }
    return ModelSpec(**{**fields, **changes})  # type: ignore[arg-type]


def plain_spec(**changes: object) -> ModelSpec:
    """The same small architecture every time: two layers, grouped heads."""
    return tiny_spec(
        random.Random(0),
        **{
            "num_layers": 2,
            "hidden_size": 20,
            "num_heads": 6,
            "num_kv_heads": 2,
            "head_dim": 4,
            "vocab_size": 29,
            "tied_embeddings": False,
            "rope": RopeSpec(theta=100.0),
            **changes,
        },
    )


def random_weights(
    spec: ModelSpec, generator: torch.Generator, scale: float = 1.5, *, dtype: torch.dtype = torch.float64
) -> Weights:
    """Every weight of `spec` under our names. `scale` is the layers' gain; the logits spread by LOGIT_SPREAD."""
    head = "embedding" if spec.tied_embeddings else "head"
    weights = {}
    for name, shape in fused_shapes(tensor_plan(spec)).items():
        weight = torch.randn(shape, generator=generator, dtype=torch.float64)
        if name.endswith(("norm.weight", "layer_scale.weight", "mamba_scale.weight", "mamba_skips.weight")):
            weight = 0.75 + 0.1 * weight
        elif name.endswith("mamba_rates.weight"):
            weight = -0.02 * weight.abs()  # a state is still felt after hundreds of tokens
        elif name.endswith("_rates.weight"):
            weight = -weight.abs()
        elif name == f"{head}.weight":
            weight *= LOGIT_SPREAD / 0.75 / shape[1] ** 0.5
        elif name.endswith(".weight") and name != "embedding.weight" and len(shape) > 1:
            weight *= scale / shape[1] ** 0.5
        weights[name] = weight.to(dtype)
    return weights


def negated(weights: Mapping[str, Tensor]) -> Weights:
    """The weights of a model whose logits are minus those of the given one: the worst drafter there is."""
    return {**weights, "final_norm.weight": -weights["final_norm.weight"]}


def tiny_runner(
    spec: ModelSpec,
    weights: Mapping[str, Tensor],
    *,
    exactness: Exactness = "exact",
    backend: Backend | None = None,
    capacity: int = CAPACITY,
    device: str = "cpu",
    cache_format: CacheFormat = "model",
    cache_bytes: int = 0,
) -> Runner:
    """A runner in the weights' own dtype. The weights are shared with the caller's, not consumed."""
    dtype = weights["embedding.weight"].dtype
    return Runner(
        spec,
        LoadedWeights({name: weight.to(device) for name, weight in weights.items()}),
        backend=backend or choose_backend(exactness, dtype=dtype, device="cpu", head_dim=spec.head_dim).backend,
        capacity=capacity,
        dtype=dtype,
        device=device,
        cache_format=cache_format,
        cache_bytes=cache_bytes,
    )


def in_parts(runner: Runner, text: Sequence[int], rng: random.Random, most: int) -> Tensor:
    """The logits of the text, read in parts of random sizes behind what the cache holds."""
    rows = []
    while text:
        size = rng.randint(1, most)
        rows.append(runner.extend(text[:size], num_logit_rows=len(text[:size])))
        text = text[size:]
    return torch.cat(rows)


def tree_logits(runner: Runner, token_ids: list[int], parents: Sequence[int]) -> Tensor:
    """Of every node of a tree behind the text."""
    ancestry = ancestry_matrix(parents)
    length = runner.cache.committed_len
    return runner.forward(
        ForwardInput(
            token_ids=token_ids,
            positions=[length + int(row.sum()) - 1 for row in ancestry],
            first_slot=runner.cache.reserve(len(token_ids)),
            prefix_len=length,
            ancestry=ancestry,
            num_logit_rows=len(token_ids),
        )
    ).logits


def drafters_of(drafter: Drafter | Drafters) -> Drafters:
    """A single drafter drafts in every round, with its full widths."""
    return drafter if isinstance(drafter, Drafters) else Drafters({"drafter": drafter})


def proposal_of(drafter: Drafter) -> TokenTree:
    """What a drafter proposes with its full widths."""
    budget = RowBudget(drafter.verify_width)
    return budget.cut(drafter.propose(budget))


def own_outcome(acceptance: Acceptance) -> DraftOutcome:
    """The outcome of a round that verified the drafter's own proposal."""
    return DraftOutcome(tokens=acceptance.tokens, path=acceptance.path, is_own=True)


class RootAlone(Drafter):
    """Proposes nothing."""

    verify_width = 1
    root = 0

    def begin(
        self, prompt_ids: Sequence[int], params: SamplingParams, noise: KeyedNoise | None, owner: str = ""
    ) -> None:
        self.root = prompt_ids[-1]

    def propose(self, budget: RowBudget) -> ProposedTree:
        return ProposedTree(tree=TokenTree(self.root))

    def told(self, outcome: DraftOutcome) -> DraftReport:
        self.root = outcome.tokens[-1]
        return NO_NEWS


def weighed(drafter: Drafter, costs: RoundCosts, own: DraftCosts = FREE) -> Drafters:
    """A single drafter that drafts where it pays, by these costs."""
    drafters = Drafters({"drafter": drafter}, is_adaptive=True)
    drafters.referee = Referee({"drafter": drafter.verify_width}, costs, own={"drafter": own})
    return drafters


def decode_rounds(
    target: Runner,
    drafter: Drafter | Drafters,
    prompt_ids: Sequence[int],
    params: SamplingParams,
    *,
    seed: int,
    num_tokens: int,
    prediction: Sequence[int] = (),
    owner: str = "",
) -> list[Round]:
    """One request, round by round, as the engine runs it."""
    noise = None if params.is_greedy else KeyedNoise(seed, target.spec.vocab_size, device=target.device)
    request = Request(prompt_ids=prompt_ids, params=params, noise=noise, prediction=prediction, owner=owner)
    drafters = drafters_of(drafter)
    drafters.start_text(request, target.drop_rows)
    for _ in prefill(target, request, drafters):
        pass
    side = Verifier(target, params, prompt_ids, noise)
    return list(decode(side, drafters, near_tie=0.0, num_tokens=num_tokens))


def decode_ids(
    target: Runner,
    drafter: Drafter | Drafters,
    prompt_ids: Sequence[int],
    params: SamplingParams,
    *,
    seed: int,
    num_tokens: int,
    prediction: Sequence[int] = (),
) -> list[int]:
    """The tokens of one request, cut to `num_tokens`."""
    rounds = decode_rounds(target, drafter, prompt_ids, params, seed=seed, num_tokens=num_tokens, prediction=prediction)
    return [token for step in rounds for token in step.token_ids][:num_tokens]


def poison_of(dtype: torch.dtype) -> float:
    """What makes a row of a cache NaN: in 8 bits -1, since a scale whose bits are all set is NaN."""
    return -1 if dtype == torch.int8 else float("nan")


def poison_freed_slots(runner: Runner) -> None:
    """From now on, NaN in every slot that holds neither committed text nor a live row, after each commit and sync."""
    cache = runner.cache
    plain_move = cache.move

    def poison() -> None:
        first_free = cache.committed_len + cache.num_tree
        cache.storage_2LSKD[:, :, first_free:] = poison_of(cache.storage_2LSKD.dtype)
        if cache.mixer_rows is not None:
            rows = cache.mixer_rows
            for ring_LSX, first in ((rows._inputs_LSC, rows._inputs_from), (rows._rows_LSR, rows._rows_from)):
                kept = rows.ring(first, first_free)
                ring_LSX[:, ~torch.isin(torch.arange(rows.num_slots), kept)] = float("nan")

    def move(what: CacheMove) -> None:
        plain_move(what)
        poison()

    cache.move = move  # type: ignore[method-assign]
    poison()
