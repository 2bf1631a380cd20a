"""forerun demo: writes an answer without and with drafting, and compares the times."""

from contextlib import ExitStack
from dataclasses import replace
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Final

import typer

from forerun.checkpoints.short_names.catalogue import find_named
from forerun.checkpoints.short_names.local import model_that_gains
from forerun.cli.about import About
from forerun.cli.answer import Show, explain_marks, origin_shower, show_plainly, write_answer
from forerun.cli.comparison import SpeedComparison, Written, compare, let_forget, reason, winner_of
from forerun.cli.drafter_options import DrafterOptions
from forerun.cli.engine_loading import open_engine
from forerun.cli.failures import INTERRUPTED, find_model
from forerun.cli.flags import option, with_options
from forerun.cli.logs import LogOptions, note
from forerun.cli.model_sheet import print_rows
from forerun.cli.options import MODEL_HELP, EngineOptions, ModelOptions, SamplingOptions
from forerun.cli.progress import progress
from forerun.cli.wrap import wrapped
from forerun.core.config import SamplingParams
from forerun.core.drafter_config import Automatic, NoDrafter

if TYPE_CHECKING:
    from forerun.engine.engine import Engine
    from forerun.text.prompt import Prompt

# Its answer repeats most of the question, so guesses gain on it even where they gain nothing on other texts.
QUESTION: Final = (
    "Correct the spelling of this text, and change nothing else:\n\n"
    "The forest is very old. Many birds and smal animals live in the forest, and people from the village walk to the "
    "forest on Sundays. In autumn the forest is red and gold, and in winter the forest is quiet and white. In spring "
    "the birds come back to the forest, and the childrn of the village look for the first flowers."
)
TEXT: Final = 'def read_lines(path):\n    """Return the lines of a text file without their line ends."""'
OF_TEXT: Final = SamplingParams(temperature=0.5, seed=7)  # greedy texts of the built-in model repeat themselves
NUM_TOKENS: Final = 160  # a second or two on two cores


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
    """Write an answer without and with drafting, and compare the speeds."""
    target = model_options.choose(model)
    config = replace(engine_options.config(target, drafter_options.config(target)), measures_speedup=False)
    sampling.params()  # checks the values before the model is loaded
    with logs.speaking(), ExitStack() as opened:
        is_chat = find_model(target).tokenizer().has_chat_template
        text = prompt or (QUESTION if is_chat else TEXT)
        _introduce(target, text)
        asked: Prompt = [{"role": "user", "content": text}] if is_chat else text
        fresh = config.drafter
        if isinstance(fresh, Automatic):  # its saved state may contain this same answer, from an earlier demo
            fresh = replace(fresh, learnt=opened.enter_context(TemporaryDirectory()))
        plain = opened.enter_context(open_engine(replace(config, drafter=NoDrafter())))
        params = _params(sampling, OF_TEXT if text is TEXT else SamplingParams())
        _show_answer(plain, asked, params, "plain decoding", show_plainly)
        drafting = opened.enter_context(open_engine(replace(config, drafter=fresh)))
        with progress("measuring what drafting gains on this machine") as report:
            found = compare(plain, drafting, asked, params, report)
        winner = winner_of(found, About.of(drafting).drafter)
        if not isinstance(fresh, Automatic) or found.gains:
            explain_marks()
            let_forget(drafting)
            show = origin_shower(drafting.tokenizer)
            _show_answer(drafting, asked, params, f"with the drafter {winner}", show)
        _tell(found, winner, drafting, text)


def _params(sampling: SamplingOptions, default: SamplingParams) -> SamplingParams:
    """Sampling parameters with a seed, so that both texts are sampled in the same way."""
    params = sampling.params(default)
    seed = OF_TEXT.seed if params.seed is None else params.seed
    return replace(params, seed=seed, max_new_tokens=params.max_new_tokens or NUM_TOKENS)


def _introduce(target: str, text: str) -> None:
    """Print the model's licence and the prompt before the model is loaded, which takes a moment."""
    named = find_named(target)
    if named is not None:
        note(f"{named.full_name}: {named.licence}, {named.licence_source}")
    with wrapped("stdout"):
        print(f"--- the prompt ---\n{text}", flush=True)


def _show_answer(engine: "Engine", asked: "Prompt", params: SamplingParams, title: str, show: Show) -> None:
    """Print the answer to stdout while it is generated."""
    print(f"\n--- {title} ---", flush=True)
    note(str(About.of(engine)))
    with wrapped("stdout"):
        _, is_interrupted = write_answer(lambda: engine.stream(asked, params), show)
    if is_interrupted:
        raise typer.Exit(INTERRUPTED)


def _tell(found: SpeedComparison, winner: str, drafting: "Engine", text: str) -> None:
    """Print both times, whether the texts are equal, the ratio, and the reason if drafting gains nothing."""
    print()
    if isinstance(drafting.config.drafter, Automatic) and not found.gains and found.num_tokens is not None:
        print_rows([("plain", _numbers(found.plain))])
        print(
            f"drafting does not pay for this text on this machine, so it is decoded plainly: {reason(drafting, found)}"
        )
        _advise(drafting)
        return
    print_rows([("plain", _numbers(found.plain)), (winner, _numbers(found.drafted))])
    if found.num_tokens is None:
        print("the texts differ: if rows are not exact, rounding can decide near-ties (see docs/exactness.md)")
        return
    times = f"{len(found.ratios)} times each, alternating slice by slice"
    print(f"the same {found.num_tokens} tokens, {found.ratio:.2f} times as fast ({times})")
    if not found.gains:
        print(f"plain decoding is the fastest for this text on this machine: {reason(drafting, found)}")
        _advise(drafting)
    elif text == QUESTION:
        print("this answer repeats most of its question, which is easy to guess: other answers gain less, or nothing")


def _advise(drafting: "Engine") -> None:
    if sentence := model_that_gains(drafting.spec.num_parameters):
        print(sentence)


def _numbers(writer: Written) -> str:
    first = writer.results[0].stats
    speed = first.num_new_tokens / writer.seconds
    passes = median(result.stats.num_rounds for result in writer.results)
    waited = f"first token after {first.first_token_s:.2f} s"
    return f"{writer.seconds:.2f} s, {speed:.0f} tokens/s, {passes:.0f} passes; {waited}"
