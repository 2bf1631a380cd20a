"""forerun generate: one prompt, one text."""

import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from forerun.checkpoints.short_names.catalogue import SMOLLM2
from forerun.cli.answer import write_answer
from forerun.cli.answer_statistics import advice
from forerun.cli.drafter_options import DrafterOptions
from forerun.cli.engine_loading import open_engine
from forerun.cli.failures import INTERRUPTED, say
from forerun.cli.flags import option, output, with_options
from forerun.cli.logs import LogOptions, note, note_all
from forerun.cli.options import MODEL_HELP, EngineOptions, ModelOptions, SamplingOptions, settle
from forerun.cli.output_options import OutputOptions
from forerun.cli.streams import decoded
from forerun.cli.timeline import check_timeline_path, write_timeline
from forerun.core.config import EngineConfig
from forerun.core.drafter_config import BUILTIN_TARGET
from forerun.core.errors import ConfigError
from forerun.core.pace import read_device
from forerun.core.steps import DecodeStep, Generation, StepStats

SAMPLE_PROMPTS: Final = {
    BUILTIN_TARGET: 'def read_lines(path):\n    """Return the lines of a text file without their line ends."""',
    SMOLLM2: "The three primary colours are",
}


@with_options(ModelOptions, DrafterOptions, EngineOptions, SamplingOptions, OutputOptions, LogOptions)
def generate(
    model_options: ModelOptions,
    drafter_options: DrafterOptions,
    engine_options: EngineOptions,
    sampling: SamplingOptions,
    form: OutputOptions,
    logs: LogOptions,
    model: Annotated[str | None, typer.Argument(help=MODEL_HELP)] = None,
    prompt: Annotated[str | None, option("--prompt", "-p", help="The text to continue; else read from stdin.")] = None,
    file: Annotated[Path | None, option("--file", "-f", help="File with the text to continue.")] = None,
    timeline: Annotated[
        Path | None,
        output("--timeline", help="Draw when target and draft work: .svg as a picture, .json for a trace viewer."),
    ] = None,
) -> None:
    """Continue a text. The text goes to stdout; a description of the model and a line of statistics go to stderr."""
    model = model_options.choose(model)
    drafter = drafter_options.config(model)
    if timeline is not None:
        check_timeline_path(timeline)
    config = engine_options.config(model, drafter)
    sampling.params()  # checks the values before the model is loaded
    text = _read_prompt(prompt, file, model)
    rounds: list[StepStats] = []
    with logs.speaking(), open_engine(config, is_traced=timeline is not None) as engine:
        params = settle(sampling, engine.default_sampling)
        note_all(config=config, params=params)
        make_show, end = form.start_display(engine)
        show = make_show()

        def show_and_keep(step: DecodeStep) -> None:
            show(step)
            rounds.append(step.stats)

        result, is_interrupted = write_answer(lambda: engine.stream(text, params), show_and_keep, end)
        if result.token_ids:  # else it was interrupted while the prompt was read, and there are no statistics
            form.note_numbers(result, config.drafter, is_greedy=params.is_greedy)
            if not form.is_json and (hint := advice(result, config.drafter)):
                note(hint)
    if timeline is not None and any(stats.spans for stats in rounds):
        write_timeline(timeline, rounds, title=_title(config, result))
    elif timeline is not None:
        say(f"no timeline was written to {timeline}: this generation reported no times of target or drafter")
    if is_interrupted:
        raise typer.Exit(INTERRUPTED)


def _title(config: EngineConfig, result: Generation) -> str:
    stats = result.stats
    name = Path(config.target).name or config.target
    paced = " · paced" if read_device(config.device).is_paced else ""
    return f"{name} · {stats.tokens_per_s:.1f} tokens/s · {stats.tokens_per_round:.2f} tokens per round{paced}"


def _read_prompt(prompt: str | None, file: Path | None, model: str) -> str:
    """The given prompt, else stdin, else a sample prompt for a default model. A file's last newline is removed."""
    if prompt is not None and file is not None:
        raise ConfigError("--prompt and --file are two prompts: leave out one")
    if prompt is None and file is None and sys.stdin.isatty():
        text = ""
    else:
        text = prompt if prompt is not None else _read_file(file).removesuffix("\n")
    if text:
        return text
    if prompt is not None or file is not None:
        raise ConfigError(f"the prompt{f' in {file}' if file else ''} is empty: give at least one character")
    if model not in SAMPLE_PROMPTS:
        raise ConfigError("there is no prompt: give one with --prompt, or pipe a text in")
    say(f"no prompt given, so here is a sample one:\n{SAMPLE_PROMPTS[model]}")
    return SAMPLE_PROMPTS[model]


def _read_file(file: Path | None) -> str:
    """The text of a file, or of stdin without one."""
    if file is None:
        return sys.stdin.read()
    try:
        return decoded(file.read_bytes())
    except OSError as error:
        raise ConfigError(f"--file {file} cannot be read ({error.strerror}): name a text file") from error
