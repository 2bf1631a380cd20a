"""Open the parts of an engine."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from time import perf_counter
from typing import Final

import torch

import forerun
from forerun.backends.choose import BackendChoice, kernel_fault
from forerun.checkpoints.open import open_source
from forerun.checkpoints.source import CheckpointSource
from forerun.core.config import EngineConfig, SamplingParams
from forerun.core.drafter_config import Automatic, NoDrafter, draft_name
from forerun.core.errors import ConfigError, NumericalError
from forerun.core.machine import cpu_model
from forerun.core.model_spec import ModelSpec
from forerun.core.pace import read_device
from forerun.core.paths import cache_folder
from forerun.core.steps import PLAIN
from forerun.core.threads import inference
from forerun.decoding.decoder import Decoder, Request, play
from forerun.decoding.device_loop import device_decoders
from forerun.decoding.drafters import Drafters
from forerun.decoding.host_loop import HostDecoder
from forerun.drafting.drafter import PLAIN_PLAN
from forerun.drafting.heads.stored import draft_identity
from forerun.drafting.policies import Policies
from forerun.engine.drafters import DrafterLoader
from forerun.engine.learnt import About, LearntFile
from forerun.engine.model_loading import Checkpoint, Progress, require_codes, require_rows, resolve_max_length
from forerun.engine.shared_model import load_shared
from forerun.engine.speedup import PlainBaseline
from forerun.engine.threads_and_cores import CorePlacement
from forerun.model.runner import Runner
from forerun.model.saved_prompts import PromptFolder
from forerun.model.self_test import find_bit_fault
from forerun.sampling.noise import KeyedNoise
from forerun.text.chat_template import read_template
from forerun.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

ADVICE_OF_TORCH = " If reserved"  # The rest of the message is about the settings of torch's allocator.

# Margins below which rounding may decide a choice if rows are not exact (torch's kernels in the fast mode): more than
# twice the largest difference measured between a one-row and an eight-row pass in each dtype, see docs/benchmarks.md.
NEAR_TIE: Final = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 0.05, torch.bfloat16: 0.25}
START_S: Final = 120.0  # wait for the draft model to load; a slower one joins a request later
WARM_UP_TOKENS: Final = 4
WARM_UP_S: Final = 0.1  # of a large model on a CPU, where the first round does nearly all one-time work
WIDE_PROMPT: Final = 64  # Tokens: more than the rows of a tree, so that the kernels of long prompts run too.
EARLY_TOKENS: Final = 512
SAMPLED: Final = SamplingParams(temperature=1.0)
# A GPU has separate kernels for sampled rounds, and for logits with filters or penalties.
KINDS_OF_ROUNDS: Final = (SamplingParams(), SAMPLED, SamplingParams(presence_penalty=1.0), replace(SAMPLED, top_p=0.9))


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineParts:
    """The parts of an engine.

    Args:
        dtype_name: name of the target's dtype or weight format in the user interface.
        max_length: tokens of prompt and answer together.
        decoders: the fastest first; the host's loop last.
        named: the decoders of requests that name a drafter: "none", or one of several that this engine holds.
        baseline: times plain rounds; None if there is no comparison.
        near_tie: the margin of two scores below which rounding may decide; 0 if rows are exact.
        learnt: measurements that are saved for the next start.
    """

    spec: ModelSpec
    dtype_name: str
    tokenizer: Tokenizer
    eos_ids: Sequence[int]
    default_sampling: SamplingParams
    max_length: int
    cores: CorePlacement
    target: Runner
    drafters: Drafters
    decoders: Sequence[Decoder]
    named: Mapping[str, Sequence[Decoder]]
    baseline: PlainBaseline | None
    near_tie: float
    learnt: LearntFile


def open_engine(
    config: EngineConfig, cores: CorePlacement, policies: Policies, on_progress: Progress | None = None
) -> EngineParts:
    """Find and load the models, choose the decoders, warm up, and measure what the policies need.

    Raises:
        CheckpointError, VocabularyError: a model cannot be read, or the draft does not fit the target.
        ConfigError: the configuration is not possible on this machine.
        NumericalError: `exact` is set, but this machine's kernels are not row-exact.
    """
    source = open_source(config.target)
    checkpoint = Checkpoint.open(source, config)
    tokenizer = tokenizer_of(source, config.chat_template)
    max_length = resolve_max_length(config, checkpoint.spec)
    require_rows(tokenizer, checkpoint.spec, config.target)
    eos_ids = source.stop_ids()  # before anything slow, as it may fail
    default_sampling = source.default_sampling()  # likewise
    choice = checkpoint.choose_backend(config.exactness)
    warn_of_missing_kernels(choice)
    require_codes(checkpoint)
    learnt = open_learnt(config, checkpoint, choice, cores)

    def load(num_rows: int) -> Runner:
        return load_target(checkpoint, config, choice, cores, max_length, num_rows, on_progress)

    loader = DrafterLoader(config, policies, checkpoint, tokenizer, max_length, cores, learnt, choice.backend)
    drafters, target = loader.load(config.drafter, load, on_progress)
    cores = replace(cores, place=target.backend.place_threads)
    if config.exactness == "exact":
        require_exact_bits(target, config.target)
    on_device = device_decoders(choice.backend, target, drafters.round_plan)
    rehearse(target, drafters, on_device, cores, max_length, learnt)
    plain = plain_decoders(target, drafters, choice, on_device)
    baseline = None
    if config.measures_speedup and config.drafter != NoDrafter():
        baseline = PlainBaseline.of(target, plain, cores, max_length, learnt.context_cost(target))

    def on_host(playing: Drafters) -> Decoder:
        if baseline is None:
            return HostDecoder(target, playing)
        playing.referee.plain_times = baseline.times
        return HostDecoder(target, playing, baseline.stretches)

    if config.saved_prompt_bytes and config.target_ranks == 1 and target.cache.mixer_rows is None:
        folder = prompt_folder(checkpoint, config, target.backend.name)
        target.save_on_disk(folder)
        logger.info("long texts are saved in %s; --no-saved-prompts saves none", folder.path)
    return EngineParts(
        spec=checkpoint.spec,
        dtype_name=checkpoint.dtype_name,
        tokenizer=tokenizer,
        eos_ids=eos_ids,
        default_sampling=default_sampling,
        max_length=max_length,
        cores=cores,
        target=target,
        drafters=drafters,
        decoders=(*on_device, on_host(drafters)),
        named=named_decoders(drafters, plain, on_host),
        baseline=baseline,
        near_tie=0.0 if choice.backend.row_exact else NEAR_TIE[checkpoint.dtype],
        learnt=learnt,
    )


def prompt_folder(checkpoint: Checkpoint, config: EngineConfig, kernels: str) -> PromptFolder:
    """Where texts of this model are saved, with all that their keys and values depend on."""
    model = (
        checkpoint.about_files(), checkpoint.spec.rope, str(checkpoint.dtype), checkpoint.weight_format, config.inputs,
        checkpoint.cache_format,
        config.exactness, read_device(config.device).torch_device, kernels, cpu_model(), forerun.__version__,
    )  # fmt: skip
    return PromptFolder(path=cache_folder() / "prompts", model=repr(model), max_bytes=config.saved_prompt_bytes)


def load_target(
    checkpoint: Checkpoint,
    config: EngineConfig,
    choice: BackendChoice,
    cores: CorePlacement,
    max_length: int,
    num_rows: int,
    on_progress: Progress | None,
) -> Runner:
    """Load the target, or this process's part of it."""
    pace = checkpoint.placement.target
    if config.target_ranks > 1:
        return load_shared(
            checkpoint,
            config,
            choice,
            role="target",
            exactness=config.exactness,
            capacity=max_length + num_rows,
            pace=pace,
            num_threads=cores.num_threads,
            cores=cores.target,
            on_progress=on_progress,
        )
    return checkpoint.load(
        exactness=config.exactness,
        capacity=max_length + num_rows,
        num_rows=num_rows,
        cache_bytes=config.cache_bytes,
        pace=pace,
        on_progress=on_progress,
    )


def tokenizer_of(source: CheckpointSource, chat_template: str | None) -> Tokenizer:
    """The model's tokenizer, with the chat template that the user gave. Its process starts while weights are read."""
    tokenizer = source.tokenizer()
    if chat_template is not None:
        tokenizer = tokenizer.with_chat_template(read_template(chat_template))
    if tokenizer.chat_template is not None:
        tokenizer.chat_template.start()
    return tokenizer


def open_learnt(
    config: EngineConfig, checkpoint: Checkpoint, choice: BackendChoice, cores: CorePlacement
) -> LearntFile:
    """Open the file with the measurements of earlier starts, if they are saved."""
    if not isinstance(config.drafter, Automatic) or config.drafter.learnt is None:
        return LearntFile(None, {})
    draft = draft_name(config.drafter)
    about: About = {
        "model": checkpoint.source.identity(),
        "weights": checkpoint.dtype_name,
        "cache": checkpoint.cache_format,
        "device": config.device,
        "cpu": cpu_model(),
        "threads": cores.num_threads,
        "ranks": config.target_ranks,
        "ranks of other hosts": config.remote_ranks,
        "kernels": choice.backend.name,
        "forerun": forerun.__version__,
        **({} if draft is None else {"draft": draft_identity(open_source(draft))}),
    }
    return LearntFile(config.drafter.learnt, about)


def named_decoders(
    drafters: Drafters, plain: Sequence[Decoder], on_host: Callable[[Drafters], Decoder]
) -> Mapping[str, Sequence[Decoder]]:
    """The decoders of requests that name a drafter."""
    names = drafters.held if len(drafters.held) > 1 else ()
    return {PLAIN: plain, **{name: (on_host(drafters.alone(name)),) for name in names}}


def plain_decoders(
    target: Runner, drafters: Drafters, choice: BackendChoice, drafted: Sequence[Decoder]
) -> Sequence[Decoder]:
    """The decoders of plain decoding: the backend's, if it also decodes drafted rounds, and the host's loop."""
    if not drafters.held:
        return (*drafted, HostDecoder(target, drafters))
    plain = device_decoders(choice.backend, target, PLAIN_PLAN) if drafted else ()
    return (*plain, HostDecoder(target, Drafters()))


def warn_of_missing_kernels(choice: BackendChoice) -> None:
    """Log one line if the device's own kernels cannot run."""
    if choice.missing is not None and not choice.backend.row_exact:
        logger.warning(
            "%s. Torch's kernels run instead: passes take two to six times as long, and a drafted text can differ from "
            "the plain one where two tokens are nearly tied",
            choice.missing,
        )


def require_exact_bits(target: Runner, name: str) -> None:
    """Raise NumericalError if the bits of a row depend on other rows."""
    fault = find_bit_fault(target)
    if fault is not None:
        raise NumericalError(
            f'exactness "exact" does not work for {name} on this machine: {fault}. Please report this; '
            'exactness "fast" works, and kernels "torch" are slow but exact by construction'
        )


def rehearse(
    target: Runner,
    drafters: Drafters,
    on_device: Sequence[Decoder],
    cores: CorePlacement,
    max_length: int,
    learnt: LearntFile,
) -> None:
    """Wait for the drafters, generate a short text, find their pass times, and run their search if they have one."""
    drafters.wait_until_ready(START_S)
    cores.place_pool()  # an earlier engine may have pinned it to other cores, which slows every timed pass
    is_compiled = torch.device(target.device).type == "cuda"
    num_prompt = max(1, min(WIDE_PROMPT, max_length // 2)) if is_compiled else 1
    until = inf if is_compiled else perf_counter() + WARM_UP_S
    warm_up(target, (*on_device, HostDecoder(target, drafters)), cores, max_length, num_prompt, until)
    learnt.forget_if_outdated(target)
    drafters.calibrate(partial(learnt.measure, target))
    if drafters.early_search_s > 0.0:
        search_early(target, drafters, cores, max_length)


def warm_up(
    target: Runner, decoders: Sequence[Decoder], cores: CorePlacement, max_length: int, num_prompt: int, until: float
) -> None:
    """Warm-up: libraries select, load and compile their kernels now, not during the first request.

    Args:
        num_prompt: tokens of the prompt; a GPU has separate kernels for passes of many rows.
        until: deadline, after which the current round is the last.
    """
    for params in KINDS_OF_ROUNDS if len(decoders) > 1 else KINDS_OF_ROUNDS[:1]:
        num_tokens = min(WARM_UP_TOKENS, max_length - num_prompt)
        write(decoders, own_text(target, params, num_prompt), cores, num_tokens=num_tokens, until=until)
    target.forget()


def search_early(target: Runner, drafters: Drafters, cores: CorePlacement, max_length: int) -> None:
    """Run a drafter's search on text that the model generates, before the first request."""
    until = perf_counter() + drafters.early_search_s
    drafters.search_early(drafters.early_search_s)
    decoders = (HostDecoder(target, drafters),)
    request = own_text(target, SAMPLED)
    write(decoders, request, cores, num_tokens=min(EARLY_TOKENS, max_length - 1), until=until)
    drafters.search_early(0.0)
    forget_text(target, drafters)


def own_text(target: Runner, params: SamplingParams, num_prompt: int = 1) -> Request:
    """A request whose prompt is `num_prompt` times token 0."""
    noise = None if params.is_greedy else KeyedNoise(0, target.spec.vocab_size, device=target.device)
    return Request(prompt_ids=(0,) * num_prompt, params=params, noise=noise)


def write(
    decoders: Sequence[Decoder], request: Request, cores: CorePlacement, *, num_tokens: int, until: float
) -> None:
    """Play the rounds of a request, at most until the deadline."""
    rounds = play(decoders, request, num_tokens)

    def finish() -> None:
        for _ in rounds:
            if perf_counter() > until:
                break
        rounds.close()

    with inference():
        cores.run(finish)


def forget_text(target: Runner, drafters: Drafters) -> None:
    """Empty all caches, the drafters' too."""
    drafters.forget()
    drafters.start_text(own_text(target, SamplingParams()))  # an unrelated prompt, for one that has begun another text
    drafters.end()
    target.forget()


@contextmanager
def naming_what_does_not_fit(config: EngineConfig) -> Iterator[None]:
    """Inside the block, raise ConfigError if the device is out of memory, or a GPU cannot run a kernel."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise ConfigError(
            f"{config.target} and its drafter do not fit into the memory of {config.device}: "
            f"{str(error).splitlines()[0].split(ADVICE_OF_TORCH)[0]} Smaller weights (int8, int4), a smaller "
            'max_length or a smaller draft need less memory; device "cpu" uses the main memory'
        ) from error
    except Exception as error:
        fault = kernel_fault(error)
        if fault is None:
            raise
        raise ConfigError(
            f"{config.device} cannot run one of Triton's kernels for {config.target}: {fault}. "
            'Set kernels "torch", which run there, but slower. Please report it, so that such a GPU is detected earlier'
        ) from error
