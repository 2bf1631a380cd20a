"""The engine: it takes prompts and returns texts."""

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Final

from forerun.core.config import UNTIL_FULL, EngineConfig, SamplingParams
from forerun.core.drafter_config import BUILTIN_TARGET, automatic_drafter
from forerun.core.errors import ConfigError, ContextOverflowError, require
from forerun.core.grammar import Grammar
from forerun.core.model_spec import kv_bytes_on_cpu
from forerun.core.steps import PLAIN, Generation
from forerun.core.threads import inference, on_threads
from forerun.decoding.decoder import Decoder, Request, Rounds, play
from forerun.decoding.drafters import Drafters
from forerun.decoding.verifier import Verifier
from forerun.drafting.policies import Policies
from forerun.engine.acceptance_watch import AcceptanceWatch
from forerun.engine.auto_device import settle_device
from forerun.engine.exclusive import ExclusiveUse
from forerun.engine.model_loading import Progress
from forerun.engine.opening import forget_text, naming_what_does_not_fit, open_engine
from forerun.engine.stream import GenerationStream
from forerun.engine.threads_and_cores import CorePlacement
from forerun.sampling.noise import KeyedNoise
from forerun.speculation.tree import TokenTree
from forerun.text.chat_template import NO_VARIABLES
from forerun.text.constraint import BothConstraints, Constraint
from forerun.text.detokenizer import TextAssembly
from forerun.text.grammar_compiler import GrammarCompiler
from forerun.text.output.thoughts import ThoughtMarks
from forerun.text.prompt import Prompt, encode, encode_prediction
from forerun.text.thought_limit import ThoughtLimit

DEFAULT_NEW_TOKENS: Final = 256


class Engine:
    """One target and one drafter. It serves one request and one thread at a time; another thread gets an
    EngineBusyError.

    A new request ends the previous one. Keys and values of earlier texts are kept, within `cache_bytes`, so that a
    prompt with the same beginning, such as a chat's next turn, is computed only from the first difference.

    The attributes `config`, `spec` (the model's sizes), `max_length`, `tokenizer` and `default_sampling` (recommended
    by the model's authors) are public.
    """

    def __init__(
        self, config: EngineConfig, on_progress: Progress | None = None, *, policies: Policies | None = None
    ) -> None:
        """Open the engine.

        Args:
            on_progress: called while the weights are read.
            policies: for experiments, instead of the drafter's default policies.
        """
        require_config(config)
        config = settle_device(config)
        cores = CorePlacement.of(config)
        chosen = Policies.of(config.drafter) if policies is None else policies
        with naming_what_does_not_fit(config):
            parts = on_threads(cores.num_threads, lambda: open_engine(config, cores, chosen, on_progress))
        self.config = config
        self.spec = parts.spec
        self.max_length = parts.max_length
        self.tokenizer = parts.tokenizer
        self.default_sampling = parts.default_sampling
        self.cores = parts.cores
        self.dtype_name = parts.dtype_name
        self.kernels_name = parts.target.backend.name
        cache = parts.target.cache
        self.context_bytes = kv_bytes_on_cpu(parts.spec, parts.max_length, cache.dtype.itemsize, cache.format)
        self._eos_ids = parts.eos_ids
        self._near_tie = parts.near_tie
        self._target = parts.target
        self._drafters = parts.drafters
        self._decoders = parts.decoders
        self._named = parts.named
        self._baseline = parts.baseline
        self._learnt = parts.learnt
        self._acceptance = AcceptanceWatch(config, parts.drafters)
        self._running: GenerationStream | None = None
        self._exclusive = ExclusiveUse()
        self._grammars = GrammarCompiler(self.tokenizer, self.spec.vocab_size, self._eos_ids)

    def __enter__(self) -> "Engine":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the running request (if it is another thread's, after its round), and refuse all further requests."""
        if self._running is not None:
            self._running.cancel()
            self._running = None
        self._exclusive.end()
        self._learnt.keep(self._drafters)
        self._drafters.close()
        self._target.close()
        if self.tokenizer.chat_template is not None:
            self.tokenizer.chat_template.close()

    def generate(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        chat_template_kwargs: Mapping[str, object] = NO_VARIABLES,
        drafter: str | None = None,
        prediction: str | Sequence[int] | None = None,
        owner: str = "",
    ) -> Generation:
        """Generate the whole text. See `stream`."""
        return self.stream(
            prompt,
            params,
            chat_template_kwargs=chat_template_kwargs,
            drafter=drafter,
            prediction=prediction,
            owner=owner,
        ).result()

    def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        chat_template_kwargs: Mapping[str, object] = NO_VARIABLES,
        drafter: str | None = None,
        prediction: str | Sequence[int] | None = None,
        owner: str = "",
        shown_tokens: Sequence[str] = (),
        thoughts: ThoughtMarks | None = None,
    ) -> GenerationStream:
        """Start generating; iterate over the result for its steps.

        Args:
            prompt: a text, token ids, or chat messages for the checkpoint's own template.
            params: default is greedy; `default_sampling` has the recommendation of the model's authors.
            chat_template_kwargs: see `encode`.
            drafter: the drafter for this text: "none" for plain decoding, or, if the engine's drafter is `auto`, one of
                the drafters that it holds, by name; None: the engine's own.
            prediction: a text, or its ids, that the answer probably resembles, such as a file to edit; drafted where
                the answer follows it, with any drafter but "none".
            owner: the user of the text. Different owners never share cached keys and values, so none can infer from
                response times how another's texts begin.
            shown_tokens: special tokens that the text shows, such as the marks of a call.
            thoughts: the marks of the model's thoughts, in which no stop text counts, and to which
                `params.max_thought_tokens` applies; None: stop texts count everywhere.

        Raises:
            ContextOverflowError: prompt and answer do not fit into max_length.
            ConfigError: the prompt is empty, ids lie outside the vocabulary, or there is no such drafter.
        """
        params = SamplingParams() if params is None else params
        require_params(params, vocab_size=self.spec.vocab_size, model=self.config.target)
        decoders = self._decoders_of(drafter)
        cores = self._cores_of(drafter)
        prompt_ids = self.encode(prompt, chat_template_kwargs=chat_template_kwargs)
        max_new_tokens = room_for(
            params.max_new_tokens, len(prompt_ids), self.max_length, most_positions=self.spec.max_positions
        )
        seed = secrets.randbits(63) if params.seed is None else params.seed
        predicted = self._predicted(prediction, drafter)
        constraint = self._constraint(params, thoughts, max_new_tokens)
        request = self._request(prompt_ids, params, seed=seed, prediction=predicted, owner=owner, constraint=constraint)
        assembly = TextAssembly(self.tokenizer, params, self._eos_ids, max_new_tokens, shown_tokens, thoughts)
        stream = GenerationStream(
            play_on(cores, decoders, request, max_new_tokens),
            assembly,
            self._exclusive,
            cores,
            seed=seed,
            num_prompt=len(prompt_ids),
            num_outside=self._drafters.num_unknown,
            compare=None if self._baseline is None or request.constraint else self._baseline.compare(request),
            on_round=None if request.constraint else self._acceptance.told,
        )
        with self._exclusive:
            self._end_running()
            self._running = stream
        return stream

    def save_prompts(self, goes_on: Callable[[], bool] | None = None) -> None:
        """Save the last text on disk, if `saved_prompt_bytes` is set: prompt and answer, as far as they are not saved.

        Args:
            goes_on: asked before every file of some MB; if it is not true, the rest is left for another call.
        """
        with self._exclusive, inference():
            self._end_running()
            for _ in self._target.save_text():
                if goes_on is not None and not goes_on():
                    break

    def forget(self) -> None:
        """End the running request and empty all caches, the drafter's too; the next prompt is then computed in full,
        unless it is saved on disk."""
        with self._exclusive, inference():
            self._end_running()
            forget_text(self._target, self._drafters)

    @contextmanager
    def verifier_after(self, prompt_ids: Sequence[int], params: SamplingParams) -> Iterator[Verifier]:
        """The target after these ids, for tools that play rounds themselves; its cache is empty afterwards.

        Penalties treat all ids as prompt.
        """
        with self._exclusive, inference():
            self._end_running()
            self._target.forget()
            self.cores.run(lambda: self._target.sync(prompt_ids[:-1]))
            try:
                yield Verifier(self._target, params, prompt_ids, self._noise(params, params.seed or 0))
            finally:
                self._target.forget()

    def margin_after(self, prompt_ids: Sequence[int], params: SamplingParams) -> float:
        """The margin of the token chosen after these ids over the second best, in the units of `near_tie`.

        At the first difference of two texts, it shows whether rounding can be the cause. See `verifier_after`.
        """
        with self.verifier_after(prompt_ids, params) as verifier:
            return self.cores.run(lambda: verifier.choose(TokenTree(prompt_ids[-1])).margins[0])

    def near_tie(self, params: SamplingParams) -> float:
        """The margin below which rounding may decide; 0 in the exact mode."""
        return self._near_tie / (params.temperature or 1.0)

    def encode(
        self,
        prompt: Prompt,
        *,
        chat_template_kwargs: Mapping[str, object] = NO_VARIABLES,
        continue_final_message: bool = False,
    ) -> list[int]:
        """Token ids of any kind of prompt, checked against the vocabulary.

        Args:
            chat_template_kwargs: variables of the chat template for this prompt; they override those of the same name
                in `EngineConfig.chat_template_kwargs`.
            continue_final_message: end the chat messages after the last one, an assistant's answer that the text
                continues; pass the ids to `stream` or `generate`.
        """
        variables = {**self.config.chat_template_kwargs, **chat_template_kwargs}
        return encode(
            prompt,
            self.tokenizer,
            vocab_size=self.spec.vocab_size,
            model=self.config.target,
            variables=variables,
            continue_final_message=continue_final_message,
        )

    def require_grammar(self, grammar: Grammar) -> None:
        """Raise ConfigError, with the reason, for a grammar that cannot be compiled. Any thread may call it."""
        self._grammars.compile(grammar)

    @property
    def drafter_pid(self) -> int | None:
        """Pid of the drafter's process; None if it is this process, on another host, or not running."""
        return self._drafters.process_id

    @property
    def drafters(self) -> tuple[str, ...]:
        """The names that `stream` accepts as `drafter`, besides None."""
        return tuple(self._named)

    @property
    def drafting(self) -> Drafters:
        """The drafters, for tools that inspect what they have learnt."""
        return self._drafters

    def _noise(self, params: SamplingParams, seed: int) -> KeyedNoise | None:
        if params.is_greedy:
            return None
        return KeyedNoise(seed, self.spec.vocab_size, device=self._target.device)

    def _request(
        self,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        *,
        seed: int,
        prediction: Sequence[int],
        owner: str,
        constraint: Constraint | None,
    ) -> Request:
        return Request(
            prompt_ids=prompt_ids,
            params=params,
            noise=self._noise(params, seed),
            near_tie=self.near_tie(params),
            prediction=prediction,
            owner=owner,
            constraint=constraint,
        )

    def _constraint(
        self, params: SamplingParams, thoughts: ThoughtMarks | None, max_new_tokens: int
    ) -> Constraint | None:
        """What limits the tokens of an answer: its grammar, and the limit on thoughts if the answer can reach it."""
        grammar = None if params.grammar is None else self._grammars.compile(params.grammar)
        most = params.max_thought_tokens
        if thoughts is None or most is None or most >= max_new_tokens:
            return grammar
        limit = ThoughtLimit(self.tokenizer, thoughts, most, self.spec.vocab_size)
        return limit if grammar is None else BothConstraints(grammar, limit)

    def _decoders_of(self, drafter: str | None) -> Sequence[Decoder]:
        if drafter is None:
            return self._decoders
        require(
            drafter in self._named,
            f"drafter {drafter!r} is not available in this engine for a single text: name {' or '.join(self._named)}, "
            "or leave it out for the engine's own drafter",
        )
        return self._named[drafter]

    def _predicted(self, prediction: str | Sequence[int] | None, drafter: str | None) -> Sequence[int]:
        """The token ids of a prediction; empty if this text is not drafted."""
        vocab_size = self.spec.vocab_size
        model = self.config.target
        token_ids = encode_prediction(prediction, self.tokenizer, vocab_size=vocab_size, model=model)
        return token_ids if drafter != PLAIN and self._drafters.verify_width > 1 else ()

    def _cores_of(self, drafter: str | None) -> CorePlacement:
        """Plain decoding uses all cores, unless the number of threads could change the text."""
        is_safe = self._target.backend.thread_exact
        return self.cores.of_plain_decoding() if drafter == PLAIN and is_safe else self.cores

    def _end_running(self) -> None:
        """End the running request and drop cached rows after its text; a drafter may have run ahead of its end."""
        if self._running is not None:
            self._running.discard()
            self._acceptance.start_answer()
            if num_tokens := self._running.num_tokens:
                self._target.cut(min(num_tokens - 1, len(self._target.cached_ids)))
            self._running = None


def require_config(config: EngineConfig) -> None:
    """Raise ConfigError if this is not an EngineConfig, but a model's name, for example."""
    require(
        isinstance(config, EngineConfig),
        f"{config!r} is not an EngineConfig: write forerun.load({config!r}) or Engine(EngineConfig(target={config!r}))",
    )


def require_params(params: SamplingParams, *, vocab_size: int, model: str) -> None:
    """Raise ConfigError if these are not SamplingParams, or if logit_bias names a token that the model lacks."""
    if not isinstance(params, SamplingParams):
        raise ConfigError(
            f"params {params!r} must be SamplingParams: write SamplingParams(temperature=1.0), for example"
        )
    unknown = next((token for token in params.logit_bias if not 0 <= token < vocab_size), None)
    if unknown is not None:
        raise ConfigError(f"logit_bias names token id {unknown}; {model} has ids 0 to {vocab_size - 1}")


def room_for(asked_for: int | None, num_prompt: int, max_length: int, *, most_positions: int) -> int:
    """The limit on new tokens after a prompt.

    Args:
        asked_for: `SamplingParams.max_new_tokens`.
        max_length: tokens of prompt and answer together.
        most_positions: the model's own limit on them.

    Raises:
        ContextOverflowError: prompt and answer do not fit.
    """
    room = max_length - num_prompt
    wanted = min(DEFAULT_NEW_TOKENS, room) if asked_for is None else room if asked_for == UNTIL_FULL else asked_for
    if room < 1 or wanted > room:
        asked = "" if asked_for in (None, UNTIL_FULL) else f" and max_new_tokens {asked_for}"
        advice = f"ask for at most {room} new tokens" if room >= 1 else "shorten the prompt"
        if max_length < most_positions:
            advice += f", or raise max_length (the model itself has {most_positions} positions)"
        else:
            advice += "; the model has no more positions than that"
        raise ContextOverflowError(
            f"a prompt of {num_prompt} tokens{asked} exceeds the context of {max_length}: {advice}"
        )
    return wanted


def play_on(cores: CorePlacement, decoders: Sequence[Decoder], request: Request, num_tokens: int) -> Rounds:
    """Run a request from its first pass to its last round.

    Only the caches outlive it; other state that an interrupt leaves incomplete is rebuilt when the next request begins.
    """
    cores.place_pool()
    yield from play(decoders, request, num_tokens)


def load(target: str = BUILTIN_TARGET, draft: str | None = None, **settings: Any) -> Engine:
    """Open an engine for `target` with the default drafter (see `automatic_drafter`), and `draft` among its drafters.

    Args:
        target: checkpoint folder, hub name, or the built-in target.
        draft: checkpoint folder or hub name of a smaller model with the same tokens, or of a draft head.
        settings: any field of EngineConfig.
    """
    if draft is not None and "drafter" in settings:
        raise ConfigError(f"draft {draft!r} and a drafter were both given: set the draft in the drafter's config")
    settings.setdefault("drafter", automatic_drafter(draft))
    return Engine(EngineConfig(target=target, **settings))
