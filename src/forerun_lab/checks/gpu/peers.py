"""transformers and our decode loop on the same GPU, with the very same weights.

A text of NUM_NEW greedy tokens behind a prompt; the rate of the tokens after the first, so that the prompt's pass does
not count, and the whole time beside it. Weights are random, so an assistant's guesses come true by chance only.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from statistics import median
from typing import Any

import torch
from torch import Tensor

from forerun.backends.gpu.backend import TRITON
from forerun.backends.torch.backend import FUSED
from forerun.checkpoints.huggingface.names import HEAD_NAME, fused_shapes, tensor_plan
from forerun.checkpoints.typed_weights import LoadedWeights
from forerun.core.config import SamplingParams
from forerun.core.model_spec import ModelSpec
from forerun.decoding.verifier import Verifier
from forerun.model.runner import Runner
from forerun.speculation.tree import TokenTree
from forerun.speculation.walk import walk
from forerun_lab.checks.gpu.cases import Case, NotThere, Row, Setting
from forerun_lab.checks.gpu.models import DTYPE, Model, models

MODELS = ("1b bf16", "8b bf16")
WAYS = ("forerun", "generate", "static_compile", "assisted", "forerun_torch")
PROMPT_LENGTH = 512
NUM_NEW = 128
MOST_REPEATS = 5
DRAFT_LAYERS = 2
NUM_GUESSED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """transformers' model and ours; their weights are the same memory."""

    theirs: Any
    weights: dict[str, Tensor]


@dataclass(slots=True)
class Ticks:
    """A streamer, in the sense of transformers: given the prompt, then the tokens of each round."""

    times: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    has_prompt: bool = False

    def put(self, token_ids: Tensor) -> None:
        if self.has_prompt:
            self.tokens += token_ids.view(-1).tolist()
            self.times.append(time.perf_counter())
        self.has_prompt = True

    def end(self) -> None:
        """The answer is whole."""


Write = Callable[[], tuple[list[float], list[int]]]  # times of rounds from the start on, and the tokens


def cases(setting: Setting) -> Iterator[Case]:
    for model in models(setting, *MODELS[: 1 if setting.is_quick or setting.is_rehearsal else None]):
        for way in WAYS:
            yield Case(name=f"{model}: {way}", run=partial(measure, model, way, setting))


def sizes(setting: Setting) -> tuple[int, int]:
    """Tokens of the prompt and of the answer."""
    return (20, 4) if setting.is_rehearsal else (PROMPT_LENGTH, NUM_NEW)


@torch.inference_mode()
def measure(model: Model, way: str, setting: Setting) -> Iterator[Row]:
    prompt_length, num_new = sizes(setting)
    pair = pair_of(model, setting)
    prompt_ids = [(7 * place + 3) % model.spec.vocab_size for place in range(prompt_length)]
    began = time.perf_counter()
    match way:
        case "forerun":
            write = our_writer(model, pair, prompt_ids, num_new, setting, backend=TRITON)
        case "forerun_torch":
            write = our_writer(model, pair, prompt_ids, num_new, setting, backend=FUSED)
        case _:
            write = their_writer(model, pair, way, prompt_ids, num_new, setting)
    for _ in range(1 if setting.is_rehearsal else 2):
        write()
    warm_s = time.perf_counter() - began
    rates = list[float]()
    totals = []
    text = list[int]()
    while len(rates) < (1 if setting.is_rehearsal else MOST_REPEATS) and (setting.left_s > 0 or not rates):
        times, text = write()
        totals.append(times[-1])
        rates.append((len(text) - 1) / (times[-1] - times[0]) if times[-1] > times[0] else 0.0)
    yield {
        "model": str(model), "way": way, "tokens_per_s": median(rates), "least": min(rates), "most": max(rates),
        "whole_s": median(totals), "first_token_s": times[0], "num_tokens": len(text), "repeats": len(rates),
        "warm_up_s": warm_s, "same_as_generate": same_start(model, text, prompt_ids, num_new, setting),
    }  # fmt: skip


def same_start(model: Model, text: list[int], prompt_ids: list[int], num_new: int, setting: Setting) -> int:
    """Tokens until the text parts from plain `generate`'s, which a near tie of random weights makes it do."""
    expected = plain_text(model, tuple(prompt_ids), num_new, setting)
    return next(
        (place for place, (left, right) in enumerate(zip(text, expected, strict=False)) if left != right), len(text)
    )


@lru_cache(maxsize=1)
def plain_text(model: Model, prompt_ids: tuple[int, ...], num_new: int, setting: Setting) -> list[int]:
    return their_writer(model, pair_of(model, setting), "generate", list(prompt_ids), num_new, setting)()[1]


def our_writer(
    model: Model, pair: Pair, prompt_ids: list[int], num_new: int, setting: Setting, *, backend: Any
) -> Write:
    """The engine's loop without a drafter: a pass, a choice on the host, a commit."""
    params = SamplingParams(temperature=0.0)
    runner = Runner(
        model.spec, LoadedWeights(pair.weights), backend=backend, capacity=len(prompt_ids) + num_new + 32, dtype=DTYPE,
        device=setting.device,
    )  # fmt: skip

    def write() -> tuple[list[float], list[int]]:
        runner.forget()
        target = Verifier(runner, params, prompt_ids, None)
        times = list[float]()
        text = list[int]()
        began = time.perf_counter()
        runner.sync(prompt_ids[:-1])
        while len(text) < num_new:
            tree, choices = target.choose_safely(TokenTree(target.root))
            acceptance = walk(tree, choices.token_ids)
            target.commit(tree, acceptance)
            text += acceptance.tokens
            times.append(time.perf_counter() - began)
        return times, text

    return write


def their_writer(model: Model, pair: Pair, way: str, prompt_ids: list[int], num_new: int, setting: Setting) -> Write:
    from transformers import CompileConfig, GenerationConfig

    constant: dict[str, Any] = {}
    extra: dict[str, Any] = {}
    match way:
        case "static_compile":
            compiling = CompileConfig(mode="reduce-overhead")
            if setting.is_rehearsal:  # without a compiler for the CPU: minutes
                compiling = CompileConfig(mode=None, backend="eager")
                compiling._compile_all_devices = True
            constant = {"cache_implementation": "static", "compile_config": compiling}
        case "assisted":
            assistant = their_model(replace(model.spec, num_layers=min(DRAFT_LAYERS, model.spec.num_layers)), setting)
            assistant.generation_config = GenerationConfig(
                num_assistant_tokens=NUM_GUESSED, num_assistant_tokens_schedule="constant",
                assistant_confidence_threshold=0.0, pad_token_id=0,
            )  # fmt: skip
            extra = {"assistant_model": assistant}
    config = GenerationConfig(max_new_tokens=num_new, do_sample=False, eos_token_id=None, pad_token_id=0, **constant)
    pair.theirs.generation_config = GenerationConfig(pad_token_id=0)
    prompt_1T = torch.tensor([prompt_ids], device=setting.device)

    def write() -> tuple[list[float], list[int]]:
        ticks = Ticks()
        began = time.perf_counter()
        pair.theirs.generate(
            prompt_1T, attention_mask=torch.ones_like(prompt_1T), generation_config=config, streamer=ticks, **extra
        )
        return [at - began for at in ticks.times], ticks.tokens[:num_new]

    return write


@lru_cache(maxsize=1)
def pair_of(model: Model, setting: Setting) -> Pair:
    theirs = their_model(model.spec, setting)
    return Pair(theirs=theirs, weights=shared_weights(theirs, model.spec))


def their_model(spec: ModelSpec, setting: Setting) -> Any:
    """A Llama with random weights, made on the device."""
    try:
        from transformers import LlamaConfig, LlamaForCausalLM, logging
    except ImportError as missing:
        raise NotThere(f"not there: {missing}") from missing
    logging.set_verbosity_error()
    config = LlamaConfig(
        vocab_size=spec.vocab_size, hidden_size=spec.hidden_size, intermediate_size=spec.intermediate_size,
        num_hidden_layers=spec.num_layers, num_attention_heads=spec.num_heads, head_dim=spec.head_dim,
        num_key_value_heads=spec.num_kv_heads, rms_norm_eps=spec.norm_eps, max_position_embeddings=4096,
        tie_word_embeddings=spec.tied_embeddings, rope_theta=spec.rope.theta,
        rope_parameters={"rope_type": "default", "rope_theta": spec.rope.theta}, eos_token_id=None, bos_token_id=None,
    )  # fmt: skip
    before = torch.get_default_dtype()
    torch.set_default_dtype(DTYPE)
    try:
        with torch.inference_mode(False), torch.device(setting.device):
            return LlamaForCausalLM(config).eval().requires_grad_(False)
    finally:
        torch.set_default_dtype(before)


def shared_weights(theirs: Any, spec: ModelSpec) -> dict[str, Tensor]:
    """Our weights by name. What is one matrix here lies in one piece, and theirs become views of it."""
    plan = tensor_plan(spec)
    parameters = dict(theirs.named_parameters())
    shapes = fused_shapes(plan)
    weights: dict[str, Tensor] = {}
    with torch.inference_mode(False):
        for name, place in plan.items():
            parameter = parameters[name] if name != HEAD_NAME else theirs.lm_head.weight
            if place.shape == shapes[place.name]:
                weights[place.name] = parameter.data
                continue
            if place.name not in weights:
                weights[place.name] = torch.empty(shapes[place.name], dtype=parameter.dtype, device=parameter.device)
            rows = weights[place.name][place.row_start : place.row_start + place.shape[0]]
            parameter.data = rows.copy_(parameter.data)
    return weights
