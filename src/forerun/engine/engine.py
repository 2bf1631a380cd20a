"""Text in, text out."""

import logging
import secrets
from collections.abc import Generator, Sequence
from functools import partial
from time import perf_counter
from types import TracebackType

import torch

from forerun.backends.choose import BackendChoice
from forerun.checkpoints.open import open_source
from forerun.core.config import UNTIL_FULL, EngineConfig, SamplingParams
from forerun.core.drafter_config import NoDrafter
from forerun.core.errors import ContextOverflowError, NumericalError
from forerun.core.pace import read_device
from forerun.core.steps import Generation, PrefillStep
from forerun.decoding.host_loop import Round, TargetSide, decode, prefill
from forerun.drafting.drafter import Drafter
from forerun.drafting.none import NoneDrafter
from forerun.engine.drafters import START_S, DrafterLoader, open_device_decoder
from forerun.engine.loading import Checkpoint, Progress, hint_at_gpu, resolve_max_length
from forerun.engine.placement import CorePlacement
from forerun.engine.plain_rounds import PlainBaseline
from forerun.engine.stream import GenerationStream
from forerun.engine.turn import Turn
from forerun.model.measure import measure_pace
from forerun.model.self_test import find_bit_fault
from forerun.runtime.inference import inference
from forerun.runtime.threads import on_threads
from forerun.sampling.noise import KeyedNoise
from forerun.speculation.tree import TokenTree
from forerun.text.assembly import TextAssembly
from forerun.text.prompt import Prompt, encode, require_config, require_params

logger = logging.getLogger(__name__)

# Margins below which rounding may decide a choice where rows are not exact, that is with torch's kernels in the fast
# mode: over twice the largest difference of a one-row and an eight-row pass that was measured in each dtype, see
# docs/benchmarks.md.
NEAR_TIE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 0.05, torch.bfloat16: 0.25}
WARM_UP_TOKENS, EARLY_TOKENS = 4, 512
DEFAULT_NEW_TOKENS = 256


class Engine:
    """One target, one drafter, one request at a time, for one thread at a time (another one gets an EngineBusyError).

    A new request ends the one before it. The text of the last request stays in the caches, so that a prompt that begins
    with it, such as a chat's next turn, is not computed again.
    """

    def __init__(self, config: EngineConfig, on_progress: Progress | None = None) -> None:
        require_config(config)
        self.cores = CorePlacement.of(config)
        on_threads(self.cores.num_threads, lambda: self._open(config, on_progress))

    def _open(self, config: EngineConfig, on_progress: Progress | None) -> None:
        self.config, self._placement = config, read_device(config.device)
        hint_at_gpu(config.device)
        source = open_source(config.target)
        target = Checkpoint.open(source, config)
        self.spec, self.max_length = target.spec, resolve_max_length(config, target.spec)
        self.tokenizer, self._eos_ids = source.tokenizer(), source.stop_ids()
        self.default_sampling = source.default_sampling()
        drafters = DrafterLoader(config, self.spec, self.tokenizer, self.max_length, self.cores)
        self._drafter, self._target = drafters.load(
            config.drafter,
            lambda num_rows: target.load(
                config,
                exactness=config.exactness,
                capacity=self.max_length + num_rows,
                pace=self._placement.target,
                on_progress=on_progress,
            ),
            on_progress,
        )
        self.dtype_name, self.kernels_name = target.dtype_name, self._target.backend.name
        self._drafter.wait_until_ready(START_S)
        self._near_tie = 0.0 if self._target.backend.row_exact else NEAR_TIE[target.dtype]
        warn_of_missing_kernels(target.choose_backend(config, config.exactness))
        if config.exactness == "exact":
            self._require_exact_bits()
        self._on_device = open_device_decoder(self._drafter, self._target)
        self._running: GenerationStream | None = None
        self._turn = Turn()
        self._baseline: PlainBaseline | None = None
        self._warm_up()
        self._drafter.adapt(partial(measure_pace, self._target))
        if self._drafter.early_search_s > 0.0:
            self._search_early(self._drafter.early_search_s)
        if config.measures_speedup and config.drafter != NoDrafter():
            on_device = None if self._on_device is None else open_device_decoder(NoneDrafter(), self._target)
            self._baseline = PlainBaseline.of(self._target, on_device, self.cores, self.max_length)

    def __enter__(self) -> "Engine":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End what is running, in another thread behind its round, and forget the text. Nothing more is answered."""
        if self._running is not None:
            self._running.cancel()
            self._running = None
        self._turn.end()
        self._drafter.close()
        self._target.forget()

    def generate(self, prompt: Prompt, params: SamplingParams | None = None) -> Generation:
        """Write the whole text. See `stream`."""
        return self.stream(prompt, params).result()

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> GenerationStream:
        """Start writing; iterate the result for its steps.

        Args:
            prompt: a text, token ids, or chat messages for the checkpoint's own template.
            params: greedy when left out; `default_sampling` is what the model's authors recommend.

        Raises:
            ContextOverflowError: prompt and answer do not fit into max_length.
            ConfigError: the prompt is empty, or prompt or params name ids that the model does not know.
        """
        params = SamplingParams() if params is None else params
        require_params(params, vocab_size=self.spec.vocab_size, model=self.config.target)
        prompt_ids = self.encode(prompt)
        max_new_tokens = self._room_for(len(prompt_ids), params)
        seed = secrets.randbits(63) if params.seed is None else params.seed
        noise = self._noise(params, seed)
        stream = GenerationStream(
            self._request(prompt_ids, params, noise, seed, max_new_tokens),
            TextAssembly(self.tokenizer, params, eos_ids=self._eos_ids, max_new_tokens=max_new_tokens),
            self._turn,
            self.cores,
            seed=seed,
            num_prompt=len(prompt_ids),
            compare=None if self._baseline is None else self._baseline.compare(prompt_ids, params, noise, seed),
        )
        with self._turn:
            self._end_running()
            self._running = stream
        return stream

    def _request(
        self, prompt_ids: list[int], params: SamplingParams, noise: KeyedNoise | None, seed: int, num_tokens: int
    ) -> Generator[PrefillStep | Round, None, None]:
        """A request from its first pass to its last round.

        Nothing of it outlives it but what the caches hold: whatever an interrupt leaves half done elsewhere is made
        anew when the next request begins.
        """

        near_tie = self.near_tie(params)

        def on_host(token_ids: list[int], num_left: int) -> Generator[Round, None, None]:
            self._drafter.begin(token_ids, params, noise)
            side = TargetSide(self._target, params, token_ids, noise)
            return decode(side, self._drafter, near_tie=near_tie, num_tokens=num_left)

        self.cores.place_pool()
        try:
            if self._on_device is not None and not params.shapes_scores:
                self._on_device.begin(prompt_ids, params, seed)
                yield from prefill(self._target, prompt_ids, None)
                yield from self._on_device.decode(near_tie=near_tie, num_tokens=num_tokens, otherwise=on_host)
                return
            self._drafter.begin(prompt_ids, params, noise)  # first: another process prefills at the same time
            yield from prefill(self._target, prompt_ids, self._drafter)
            side, stretches = TargetSide(self._target, params, prompt_ids, noise), None
            if self._baseline is not None:
                stretches = self._baseline.stretches(self._drafter, params, noise)
            yield from decode(side, self._drafter, near_tie=near_tie, num_tokens=num_tokens, stretches=stretches)
        finally:
            self._drafter.end()

    def forget(self) -> None:
        """End what is running and empty all caches, the drafter's too, so that the next prompt is computed whole."""
        with self._turn, inference():
            self._end_running()
            # A request of one token has nothing before its root, so that no drafter keeps anything of another text.
            self._drafter.begin((0,), SamplingParams(), None)
            self._drafter.end()
            self._target.forget()

    def margin_after(self, prompt_ids: Sequence[int], params: SamplingParams) -> float:
        """How far the token chosen after these ids leads the next best one, in the units of `near_tie`.

        Where two texts part, this says whether rounding can have been the cause. Penalties take all ids for the
        prompt's. The target's cache is empty afterwards.
        """
        with self._turn, inference():
            self._end_running()
            self.cores.run(lambda: self._target.sync(prompt_ids[:-1]))
            side = TargetSide(self._target, params, prompt_ids, self._noise(params, params.seed or 0))
            margin = self.cores.run(lambda: side.choose(TokenTree(prompt_ids[-1])).margins[0])
            self._target.forget()
        return margin

    def near_tie(self, params: SamplingParams) -> float:
        """The margin below which rounding may decide; 0 in the exact mode."""
        return self._near_tie / (params.temperature or 1.0)

    def encode(self, prompt: Prompt) -> list[int]:
        """Token ids of any kind of prompt, checked against the vocabulary."""
        return encode(prompt, self.tokenizer, vocab_size=self.spec.vocab_size, model=self.config.target)

    @property
    def drafter_pid(self) -> int | None:
        """The process that drafts; None where it is this one, or one on another host, or none just now."""
        return self._drafter.process_id

    @property
    def drafter(self) -> Drafter:
        """What proposes trees, for tools that look at what it has learnt."""
        return self._drafter

    def _warm_up(self) -> None:
        """Let every library choose and load its code now, not during the first request."""
        num_tokens = min(WARM_UP_TOKENS, self.max_length - 1)
        temperatures = (0.0,) if self._on_device is None else (0.0, 1.0)  # sampled rounds have kernels of their own
        for temperature in temperatures:
            self.generate(
                (0,), SamplingParams(temperature=temperature, seed=0, max_new_tokens=num_tokens, ignore_eos=True)
            )
        self._target.forget()

    def _search_early(self, seconds: float) -> None:
        """Let a drafter that searches look at a text of the model's own making, before anybody waits."""
        until = perf_counter() + seconds
        self._drafter.search_early(seconds)
        num_tokens = min(EARLY_TOKENS, self.max_length - 1)
        for _ in self.stream((0,), SamplingParams(temperature=1.0, seed=0, ignore_eos=True, max_new_tokens=num_tokens)):
            if perf_counter() > until:
                break
        self._drafter.search_early(0.0)
        self.forget()

    def _require_exact_bits(self) -> None:
        fault = find_bit_fault(self._target)
        if fault is not None:
            raise NumericalError(
                f'exactness "exact" cannot be had for {self.config.target} on this machine: {fault}. Please report it; '
                'exactness "fast" works, and kernels "torch" are slow but exact by construction'
            )

    def _noise(self, params: SamplingParams, seed: int) -> KeyedNoise | None:
        if params.is_greedy:
            return None
        return KeyedNoise(seed, self.spec.vocab_size, device=self._placement.torch_device)

    def _end_running(self) -> None:
        if self._running is not None:
            self._running.discard()
            self._running = None

    def _room_for(self, num_prompt: int, params: SamplingParams) -> int:
        """Tokens to write at most."""
        room = self.max_length - num_prompt
        asked_for = params.max_new_tokens
        wanted = min(DEFAULT_NEW_TOKENS, room) if asked_for is None else room if asked_for == UNTIL_FULL else asked_for
        if room < 1 or wanted > room:
            asked = "" if asked_for in (None, UNTIL_FULL) else f" and max_new_tokens {asked_for}"
            advice = f"ask for at most {room} new tokens" if room >= 1 else "shorten the prompt"
            longest = self.spec.max_positions
            if self.max_length < longest:
                advice += f", or raise max_length (the model itself has {longest} positions)"
            else:
                advice += "; the model has no more positions than that"
            raise ContextOverflowError(
                f"a prompt of {num_prompt} tokens{asked} exceeds the context of {self.max_length}: {advice}"
            )
        return wanted


def warn_of_missing_kernels(choice: BackendChoice) -> None:
    """One line where kernels made for the device would have run, if they could."""
    if choice.missing is not None and not choice.backend.row_exact:
        logger.warning(
            "%s. Without them torch's kernels run: passes take two to six times as long, and a drafted text can part "
            "from the plain one where two tokens are nearly tied",
            choice.missing,
        )
