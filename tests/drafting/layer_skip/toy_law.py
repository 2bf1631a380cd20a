"""A model of ten tokens, small enough to list the law of its next three, and how well drawn texts fit that law."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import cache

import torch

from forerun.backends.cpu.backend import NATIVE
from forerun.backends.cpu.binding import fault
from forerun.backends.torch.backend import FUSED
from forerun.core.config import SamplingParams
from forerun.core.drafter_config import LayerSkip
from forerun.core.sublayers import SkipSet
from forerun.decoding.decoder import Round
from forerun.drafting.drafter import Drafter
from forerun.model.runner import Runner
from tests.chi_square import MIN_EXPECTED, chi_square_p_value
from tests.dense_reference import dense_logits, shaped_scores
from tests.drafting.layer_skip.playing import play, target_for, weights_of
from tests.tiny import plain_spec

Text = tuple[int, ...]
Law = Mapping[Text, float]

VOCAB_SIZE, NUM_TOKENS = 10, 3
SPEC = plain_spec(num_layers=4, vocab_size=VOCAB_SIZE, max_positions=128)
WEIGHTS = weights_of(37, SPEC, dtype=torch.float32)
WEIGHTS["head.weight"] = 0.6 * WEIGHTS["head.weight"]  # so that several tokens are likely even where few are left
WIDE = {name: weight.double() for name, weight in WEIGHTS.items()}
PROMPT = [3, 1, 4, 1, 5]
NOTHING: SkipSet = frozenset()
KNOWN_LAWS: dict[tuple[Text, str, SkipSet], list[float]] = {}


def params_of(temperature: float, top_p: float) -> SamplingParams:
    return SamplingParams(temperature=temperature, top_p=top_p)


@cache
def logits_after(text: Text, skipped: SkipSet) -> tuple[float, ...]:
    return tuple(dense_logits(SPEC, WIDE, [*PROMPT, *text], skipped=skipped)[-1].tolist())


def next_law(text: Text, params: SamplingParams, skipped: SkipSet = NOTHING) -> list[float]:
    """Chances of the next token as these parameters have it."""
    key = (text, repr(params), skipped)
    if key not in KNOWN_LAWS:
        KNOWN_LAWS[key] = softmax(shaped_scores(logits_after(text, skipped), params, PROMPT, text))
    return list(KNOWN_LAWS[key])


def softmax(scores: Iterable[float]) -> list[float]:
    scores = list(scores)
    weights = [math.exp(score - max(scores)) for score in scores]
    return [weight / math.fsum(weights) for weight in weights]


def joint_law(params: SamplingParams, num_tokens: int = NUM_TOKENS) -> Law:
    """Chances of the first tokens, all texts of which can be written."""
    law: dict[Text, float] = {(): 1.0}
    for _ in range(num_tokens):
        law = {
            (*text, token): chance * share
            for text, chance in law.items()
            for token, share in enumerate(next_law(text, params))
            if share > 0.0
        }
    return law


def given(law: Law, event: Callable[[Text], bool]) -> Law:
    """The law of the texts of which this is true."""
    total = math.fsum(chance for text, chance in law.items() if event(text))
    return {text: chance / total for text, chance in law.items() if event(text)}


def fit(texts: Iterable[Text], law: Law) -> float:
    """The p-value of these texts under the law; rare ones are counted together. 0 where one is impossible."""
    counts = Counter(texts)
    if not counts.keys() <= law.keys():
        return 0.0
    num_texts = counts.total()
    bins: list[tuple[float, float]] = []
    rare_count = rare_expected = 0.0
    for text, chance in law.items():
        if chance * num_texts < MIN_EXPECTED:
            rare_count, rare_expected = rare_count + counts[text], rare_expected + chance * num_texts
        else:
            bins.append((counts[text], chance * num_texts))
    if rare_expected >= MIN_EXPECTED or not bins:
        bins.append((rare_count, rare_expected))
    elif rare_expected:
        bins[0] = (bins[0][0] + rare_count, bins[0][1] + rare_expected)
    assert len(bins) > 1, f"{num_texts} texts are too few to tell anything"
    return chi_square_p_value([count for count, _ in bins], [expected for _, expected in bins])


def toy_target(config: LayerSkip | None) -> Runner:
    """In float32, by the native kernels where they are."""
    return target_for(config, WEIGHTS, spec=SPEC, backend=FUSED if fault() else NATIVE, max_length=32)


def first_tokens(target: Runner, drafter: Drafter, params: SamplingParams, seed: int) -> tuple[Text, Round]:
    """The first three tokens of a request, and its first round."""
    rounds = play(target, drafter, PROMPT, params, seed=seed, num_tokens=NUM_TOKENS)
    tokens = tuple(token for step in rounds for token in step.token_ids)
    return tokens[:NUM_TOKENS], rounds[0]
