"""forerun demo: the same answer twice, plain and drafted, with both times."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Final

import typer

from forerun.checkpoints.short_names.catalogue import NAMED_MODELS
from forerun.cli.about import About
from forerun.cli.answer import Show, explain_marks, origin_shower, show_plainly, write_answer
from forerun.cli.declare import option, with_options
from forerun.cli.drafter_options import DrafterOptions
from forerun.cli.engine_loading import open_engine
from forerun.cli.failures import INTERRUPTED, find_model, shows_errors
from forerun.cli.logs import LogOptions, note
from forerun.cli.options import MODEL_HELP, EngineOptions, ModelOptions, SamplingOptions, settle
from forerun.cli.progress import progress
from forerun.cli.sheet import print_rows
from forerun.cli.wrap import wrapped
from forerun.core.config import SamplingParams
from forerun.core.drafter_config import Automatic, DrafterConfig, NoDrafter
from forerun.core.steps import Generation, GenerationStats

if TYPE_CHECKING:
    from forerun.engine.engine import Engine
    from forerun.text.prompt import Prompt

# Its answer repeats parts of the question: what drafters that look things up are good at.
QUESTION: Final = (
    "Summarise this text in a few sentences:\n\n"
    "The Amazon rainforest is the largest tropical rainforest in the world. It covers most of the Amazon basin of "
    "South America, an area of about six million square kilometres. The forest is home to ten percent of all "
    "known species, and its trees store a great amount of carbon. Many rivers flow through it, and the people who "
    "live there depend on them for food and transport. Every year, large parts of the forest are cut down to make "
    "room for farms and cattle, and scientists warn that the forest may not recover if the losses go on."
)
TEXT: Final = 'def read_lines(path):\n    """Return the lines of a text file without their line ends."""'
OF_TEXT: Final = SamplingParams(temperature=0.5, seed=7)  # greedy texts of the built-in model repeat themselves
NUM_TOKENS: Final = 160  # a second or two on two cores
REPEAT_S: Final = 3.0  # for which both are written again, unseen: a single time can be off by half


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerTimes:
    """An engine and its answers, the first of which was shown."""

    engine: "Engine"
    about: About
    results: list[Generation]

    @property
    def best(self) -> GenerationStats:
        """Of the answer that took least: whatever else the machine does only adds to its time."""
        return min((result.stats for result in self.results), key=lambda stats: stats.decode_s)


@shows_errors
@with_options(ModelOptions, DrafterOptions, EngineOptions, SamplingOptions, LogOptions)
def demo(
    model_options: ModelOptions,
    drafter_options: DrafterOptions,
    engine_options: EngineOptions,
    sampling: SamplingOptions,
    logs: LogOptions,
    model: Annotated[str | None, typer.Argument(help=MODEL_HELP)] = None,
    prompt: Annotated[str | None, option("--prompt", "-p", help="Another question, or text to continue.")] = None,
) -> None:
    """Write an answer twice, plain and drafted, and compare the speeds."""
    target = model_options.choose(model)
    config = replace(engine_options.config(target, drafter_options.config(target)), measures_speedup=False)
    sampling.params()  # complains before the model is loaded
    with logs.speaking(), ExitStack() as opened:
        is_chat = find_model(target).tokenizer().has_chat_template
        text = prompt or (QUESTION if is_chat else TEXT)
        _introduce(target, text)
        asked: Prompt = [{"role": "user", "content": text}] if is_chat else text
        both: list[AnswerTimes] = []
        fresh = _with_nothing_learnt(config.drafter, opened.enter_context(TemporaryDirectory()))
        for drafter in (NoDrafter(), fresh):
            engine = opened.enter_context(open_engine(replace(config, drafter=drafter)))
            params = _params(sampling, engine, OF_TEXT if text is TEXT else engine.default_sampling)
            both.append(_show_answer(engine, asked, params))
        plain, drafted = both
        _write_again(both, asked, params)
    _compare(plain, drafted)


def _with_nothing_learnt(drafter: DrafterConfig, folder: str) -> DrafterConfig:
    """The drafter as at its very first start: at the next one it would have this very answer from the last demo."""
    return replace(drafter, learnt=folder) if isinstance(drafter, Automatic) else drafter


def _write_again(both: Sequence[AnswerTimes], asked: "Prompt", params: SamplingParams) -> None:
    """The same answers unseen, in turn, so that what else the machine does meets both."""
    began = perf_counter()
    with progress("writing both again, for their times") as report:
        while (passed := perf_counter() - began) < REPEAT_S:
            report(int(1e3 * passed), int(1e3 * REPEAT_S))
            for writer in both:
                writer.engine.forget()
                writer.engine.drafter.restore(b"")  # so that no answer is drafted from the same one before it
                writer.results.append(writer.engine.generate(asked, params))


def _params(sampling: SamplingOptions, engine: "Engine", default: SamplingParams) -> SamplingParams:
    """With a seed: the two texts have to be drawn alike."""
    params = sampling.params(default) if default is OF_TEXT else settle(sampling, default)
    seed = OF_TEXT.seed if params.seed is None else params.seed
    return replace(params, seed=seed, max_new_tokens=params.max_new_tokens or NUM_TOKENS)


def _introduce(target: str, text: str) -> None:
    """What is asked, and of whom: shown at once, as loading takes a moment."""
    named = NAMED_MODELS.get(target)
    if named is not None:
        note(f"{named.full_name}: {named.licence}, {named.licence_source}")
    with wrapped("stdout"):
        print(f"--- the prompt ---\n{text}", flush=True)


def _show_answer(engine: "Engine", asked: "Prompt", params: SamplingParams) -> AnswerTimes:
    """The answer on stdout as it is written, what was drafted marked."""
    about, is_drafted = About.of(engine), not isinstance(engine.config.drafter, NoDrafter)
    print(f"\n--- {f'with the drafter {about.drafter}' if is_drafted else 'plain decoding'} ---", flush=True)
    note(str(about))
    if is_drafted:
        explain_marks()
    show: Show = origin_shower(engine.tokenizer) if is_drafted else show_plainly
    with wrapped("stdout"):
        result, is_interrupted = write_answer(lambda: engine.stream(asked, params), show)
    if is_interrupted:
        raise typer.Exit(INTERRUPTED)
    return AnswerTimes(engine=engine, about=about, results=[result])


def _compare(plain: AnswerTimes, drafted: AnswerTimes) -> None:
    """Both times, whether the texts are equal, and the ratio."""
    print()
    print_rows([("plain", _numbers(plain)), (drafted.about.drafter, _numbers(drafted))])
    texts = {result.token_ids for writer in (plain, drafted) for result in writer.results}
    if len(texts) > 1:
        print("the texts are not equal: where rows are not exact, near-ties may decide (see the README on exactness)")
        return
    ratio, num_times = plain.best.decode_s / drafted.best.decode_s, len(plain.results)
    print(f"the same {len(texts.pop())} tokens, {ratio:.2f} times as fast (each the best of {num_times} times)")


def _numbers(writer: AnswerTimes) -> str:
    best, first = writer.best, writer.results[0].stats
    return (
        f"{best.decode_s:.2f} s, {best.tokens_per_s:.0f} tokens/s, {best.num_rounds} passes; "
        f"first token after {first.first_token_s:.2f} s"
    )
