"""Measure a draft on held-out openings: tokens per round, and the speed-up over plain decoding."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Final

from forerun.core.config import EngineConfig, SamplingParams
from forerun.core.drafter_config import DrafterConfig, DraftModel, NoDrafter, PromptLookup
from forerun.core.steps import Generation
from forerun.drafting.policies import Policies, TreePolicy
from forerun.engine.engine import Engine
from forerun_lab.distill.openings import Openings
from forerun_lab.distill.writer import WrittenText

TEMPERATURES: Final = (0.0, 1.0)
NEW_TOKENS: Final = 96  # generated per answer
MAX_PROMPTS = 12
MIN_PROMPTS = 4
BASE_PROMPT: Final = 16  # prompt tokens taken from a text that does not begin with a question
TREE: Final = 16  # rows of the tree with which tokens per round are counted
COUNTED: Final = Policies(tree=TreePolicy(looks_up=False, min_mass=0.0))  # only the draft, whatever a pass costs

Prompts = Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftWorth:
    """The measurements of a draft at one temperature.

    Args:
        tokens_per_round: with trees of 16 rows from the draft alone.
        lookup_tokens_per_round: with prompt lookup alone, for comparison.
        speedup: over plain decoding, as the engine measures it with the draft; None: too few rounds were measured.
        num_texts, num_identical: texts written with a drafter, and how many have the same tokens as without one.
    """

    temperature: float
    tokens_per_round: float
    lookup_tokens_per_round: float
    speedup: float | None
    num_texts: int
    num_identical: int


def assess(
    engine: EngineConfig, draft: str, prompts: Prompts, *, max_s: float, on_text: Callable[[], None]
) -> list[DraftWorth]:
    """Answer the prompts plainly, with the draft, and with prompt lookup, at every temperature.

    Args:
        draft: the draft's folder.
        max_s: once plain decoding has taken this many seconds, no further prompt is answered.
        on_text: called after every text.
    """
    plain = _answer(engine, NoDrafter(), prompts, on_text, max_s)
    prompts = prompts[: len(plain[0])]
    model = DraftModel(model=draft)
    counted = DraftModel(model=draft, verify_width=TREE, adaptive=False)
    tree = _answer(engine, counted, prompts, on_text, policies=COUNTED)
    drafted = _answer(replace(engine, measures_speedup=True), model, prompts, on_text)
    lookup = _answer(engine, PromptLookup(), prompts, on_text)
    return [
        _worth(temperature, *texts)
        for temperature, *texts in zip(TEMPERATURES, plain, tree, drafted, lookup, strict=True)
    ]


def prompts_of(texts: Sequence[WrittenText], openings: Openings) -> list[list[int]]:
    """The beginnings of texts: the question up to where the answer begins, or the first tokens if there is none."""
    found = {tuple(prompt): None for prompt in (_prompt_of(text, openings) for text in texts) if prompt}
    fitting = [list(prompt) for prompt in found if len(prompt) <= openings.longest // 2]
    return fitting[:MAX_PROMPTS]


def _prompt_of(text: WrittenText, openings: Openings) -> list[int]:
    ids = text.token_ids.tolist()
    frame = openings.frame
    if frame is not None and text.num_given == len(frame.before):
        ends = (
            end for end in range(text.num_given, len(ids)) if tuple(ids[end - len(frame.after) : end]) == frame.after
        )
        return list(ids[: next(ends, 0)])
    return list(ids[: max(text.num_given, min(BASE_PROMPT, len(ids) // 2))])


def _answer(
    config: EngineConfig,
    drafter: DrafterConfig,
    prompts: Prompts,
    on_text: Callable[[], None],
    max_s: float | None = None,
    policies: Policies | None = None,
) -> list[list[Generation]]:
    """The answers at every temperature to as many prompts as fit into `max_s`."""
    with Engine(replace(config, drafter=drafter), policies=policies) as engine:
        rows = []
        began = perf_counter()
        for number, prompt in enumerate(prompts):
            rows.append(list(_texts_of(engine, prompt, number, on_text)))
            if max_s is not None and number + 1 >= MIN_PROMPTS and perf_counter() - began > max_s:
                break
    return [list(column) for column in zip(*rows, strict=True)]


def _texts_of(engine: Engine, prompt: Sequence[int], number: int, on_text: Callable[[], None]) -> Iterator[Generation]:
    new_tokens = min(NEW_TOKENS, engine.max_length - len(prompt))
    for temperature in TEMPERATURES:
        params = SamplingParams(max_new_tokens=new_tokens, temperature=temperature, seed=number)
        yield engine.generate(prompt, params)
        on_text()


def _worth(
    temperature: float,
    plain: Sequence[Generation],
    tree: Sequence[Generation],
    drafted: Sequence[Generation],
    lookup: Sequence[Generation],
) -> DraftWorth:
    alike = [
        text.token_ids == other.token_ids
        for texts in (tree, drafted, lookup)
        for text, other in zip(plain, texts, strict=True)
    ]
    return DraftWorth(
        temperature=temperature,
        tokens_per_round=_tokens_per_round(tree),
        lookup_tokens_per_round=_tokens_per_round(lookup),
        speedup=_speedup(drafted),
        num_texts=len(alike),
        num_identical=sum(alike),
    )


def _tokens_per_round(texts: Sequence[Generation]) -> float:
    return sum(text.stats.num_new_tokens for text in texts) / sum(text.stats.num_rounds for text in texts)


def _speedup(texts: Sequence[Generation]) -> float | None:
    """Over all texts: the seconds that plain decoding would have taken, divided by the seconds taken."""
    measured = [(text.stats.speedup.value, text.stats.decode_s) for text in texts if text.stats.speedup is not None]
    plain_s = sum(value * seconds for value, seconds in measured)
    drafted_s = sum(seconds for _, seconds in measured)
    return plain_s / drafted_s if drafted_s else None
