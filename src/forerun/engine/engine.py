"""Text in, text out."""

import secrets
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Final

from forerun.core.config import UNTIL_FULL, EngineConfig, SamplingParams
from forerun.core.errors import ContextOverflowError, require
from forerun.core.steps import Generation
from forerun.decoding.decoder import Decoder, Request, Rounds, play
from forerun.decoding.host_loop import Verifier
from forerun.drafting.automatic import PLAIN
from forerun.drafting.drafter import Drafter
from forerun.drafting.policies import Policies
from forerun.engine.device import settle_device
from forerun.engine.does_not_fit import naming_what_does_not_fit
from forerun.engine.exclusive import ExclusiveUse
from forerun.engine.model_loading import Progress
from forerun.engine.opening import forget_text, open_engine
from forerun.engine.placement import CorePlacement
from forerun.engine.stream import GenerationStream
from forerun.runtime.inference import inference
from forerun.runtime.threads import on_threads
from forerun.sampling.noise import KeyedNoise
from forerun.speculation.tree import TokenTree
from forerun.text.assembly import TextAssembly
from forerun.text.chat_template import NO_VARIABLES
from forerun.text.prompt import Prompt, encode, encode_prediction, require_config, require_params

DEFAULT_NEW_TOKENS: Final = 256


class Engine:
    """One target, one drafter, one request at a time, for one thread at a time (another one gets an EngineBusyError).

    A new request ends the one before it. Keys and values of the texts so far are kept, within `cache_bytes`, so that a
    prompt that begins as one of them did, such as a chat's next turn, is computed from where it differs.

    Its `config`, `spec` (the model's sizes), `max_length`, `tokenizer` and `default_sampling` (what the model's authors
    recommend) may be read.
    """

    def __init__(
        self, config: EngineConfig, on_progress: Progress | None = None, *, policies: Policies | None = None
    ) -> None:
        """Open it.

        Args:
            on_progress: called while the weights are read.
            policies: for experiments, in place of those that suit the drafter.
        """
        require_config(config)
        config = settle_device(config)
        cores = CorePlacement.of(config)
        chosen = Policies.of(config.drafter) if policies is None else policies
        with naming_what_does_not_fit(config):
            parts = on_threads(cores.num_threads, lambda: open_engine(config, cores, chosen, on_progress))
        self.config, self.spec, self.max_length = config, parts.spec, parts.max_length
        self.tokenizer, self.default_sampling = parts.tokenizer, parts.default_sampling
        self.cores, self.dtype_name, self.kernels_name = parts.cores, parts.dtype_name, parts.target.backend.name
        self._eos_ids, self._near_tie = parts.eos_ids, parts.near_tie
        self._target, self._drafter = parts.target, parts.drafter
        self._decoders, self._named = parts.decoders, parts.named
        self._baseline, self._learnt = parts.baseline, parts.learnt
        self._running: GenerationStream | None = None
        self._exclusive = ExclusiveUse()

    def __enter__(self) -> "Engine":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the running request, another thread's after its round, and drop the text. No request is served after."""
        if self._running is not None:
            self._running.cancel()
            self._running = None
        self._exclusive.end()
        self._learnt.keep(self._drafter)
        self._drafter.close()
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
        """Write the whole text. See `stream`."""
        return self.stream(
            prompt, params, chat_template_kwargs=chat_template_kwargs, drafter=drafter, prediction=prediction,
            owner=owner,
        ).result()  # fmt: skip

    def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        chat_template_kwargs: Mapping[str, object] = NO_VARIABLES,
        drafter: str | None = None,
        prediction: str | Sequence[int] | None = None,
        owner: str = "",
    ) -> GenerationStream:
        """Start writing; iterate the result for its steps.

        Args:
            prompt: a text, token ids, or chat messages for the checkpoint's own template.
            params: greedy when left out; `default_sampling` is what the model's authors recommend.
            chat_template_kwargs: see `encode`.
            drafter: who drafts this text: "none", which is plain decoding, or, where the engine's drafter is `auto`,
                one of those that it holds, by name; None: the engine's own.
            prediction: a text, or its ids, that the answer probably resembles, such as a file that is to be edited. It
                is drafted where the answer follows it, with any drafter but "none", and changes no token.
            owner: whose text it is. Texts of different owners never share cached keys and values, so that nobody can
                tell from the time of an answer what another one's texts begin with.

        Raises:
            ContextOverflowError: prompt and answer do not fit into max_length.
            ConfigError: the prompt is empty; prompt, params or prediction have ids outside the vocabulary; or there is
                no such drafter.
        """
        params = SamplingParams() if params is None else params
        require_params(params, vocab_size=self.spec.vocab_size, model=self.config.target)
        decoders = self._decoders_of(drafter)
        prompt_ids = self.encode(prompt, chat_template_kwargs=chat_template_kwargs)
        max_new_tokens = self._room_for(len(prompt_ids), params)
        seed = secrets.randbits(63) if params.seed is None else params.seed
        predicted, cores = self._predicted(prediction, drafter), self._cores_of(drafter)
        request = self._request(prompt_ids, params, seed=seed, prediction=predicted, owner=owner)
        stream = GenerationStream(
            play_on(cores, decoders, request, max_new_tokens),
            TextAssembly(self.tokenizer, params, eos_ids=self._eos_ids, max_new_tokens=max_new_tokens),
            self._exclusive,
            cores,
            seed=seed,
            num_prompt=len(prompt_ids),
            num_outside=self._drafter.num_unknown,
            compare=None if self._baseline is None else self._baseline.compare(request),
        )
        with self._exclusive:
            self._end_running()
            self._running = stream
        return stream

    def forget(self) -> None:
        """End the running request and empty all caches, the drafter's too: the next prompt is computed whole."""
        with self._exclusive, inference():
            self._end_running()
            forget_text(self._target, self._drafter)

    def margin_after(self, prompt_ids: Sequence[int], params: SamplingParams) -> float:
        """The margin of the token chosen after these ids over the next best one, in the units of `near_tie`.

        Where two texts differ, it shows whether rounding can be the cause. Penalties treat all ids as the prompt's.
        The target's cache is empty afterwards.
        """
        with self._exclusive, inference():
            self._end_running()
            self._target.forget()
            self.cores.run(lambda: self._target.sync(prompt_ids[:-1]))
            verifier = Verifier(self._target, params, prompt_ids, self._noise(params, params.seed or 0))
            margin = self.cores.run(lambda: verifier.choose(TokenTree(prompt_ids[-1])).margins[0])
            self._target.forget()
        return margin

    def near_tie(self, params: SamplingParams) -> float:
        """The margin below which rounding may decide; 0 in the exact mode."""
        return self._near_tie / (params.temperature or 1.0)

    def encode(self, prompt: Prompt, *, chat_template_kwargs: Mapping[str, object] = NO_VARIABLES) -> list[int]:
        """Token ids of any kind of prompt, checked against the vocabulary.

        Args:
            chat_template_kwargs: variables of the chat template for this prompt; each goes before the one of the same
                name in `EngineConfig.chat_template_kwargs`.
        """
        variables = {**self.config.chat_template_kwargs, **chat_template_kwargs}
        vocab_size, model = self.spec.vocab_size, self.config.target
        return encode(prompt, self.tokenizer, vocab_size=vocab_size, model=model, variables=variables)

    @property
    def drafter_pid(self) -> int | None:
        """Pid of the drafter's process; None if that is this process, on another host, or not running."""
        return self._drafter.process_id

    @property
    def drafters(self) -> tuple[str, ...]:
        """What `stream` takes as `drafter`, beside None."""
        return tuple(self._named)

    @property
    def drafter(self) -> Drafter:
        """The drafter, for tools that inspect its learnt state."""
        return self._drafter

    def _noise(self, params: SamplingParams, seed: int) -> KeyedNoise | None:
        if params.is_greedy:
            return None
        return KeyedNoise(seed, self.spec.vocab_size, device=self._target.device)

    def _request(
        self, prompt_ids: Sequence[int], params: SamplingParams, *, seed: int, prediction: Sequence[int], owner: str
    ) -> Request:
        return Request(
            prompt_ids=prompt_ids,
            params=params,
            noise=self._noise(params, seed),
            near_tie=self.near_tie(params),
            prediction=prediction,
            owner=owner,
        )

    def _decoders_of(self, drafter: str | None) -> Sequence[Decoder]:
        if drafter is None:
            return self._decoders
        require(
            drafter in self._named,
            f"drafter {drafter!r} cannot be had from this engine for one text: name {' or '.join(self._named)}, or "
            "leave it out for the engine's own",
        )
        return self._named[drafter]

    def _predicted(self, prediction: str | Sequence[int] | None, drafter: str | None) -> Sequence[int]:
        """What is drafted of a prediction: nothing where nothing is drafted."""
        vocab_size, model = self.spec.vocab_size, self.config.target
        token_ids = encode_prediction(prediction, self.tokenizer, vocab_size=vocab_size, model=model)
        return token_ids if drafter != PLAIN and self._drafter.verify_width > 1 else ()

    def _cores_of(self, drafter: str | None) -> CorePlacement:
        """Plain decoding leaves no core to a drafter's process, unless the number of threads could change the text."""
        is_safe = self._target.backend.thread_exact
        return self.cores.of_plain_decoding() if drafter == PLAIN and is_safe else self.cores

    def _end_running(self) -> None:
        """End the running request and drop what is behind its text: a drafter may have run ahead of its end."""
        if self._running is not None:
            self._running.discard()
            if num_tokens := self._running.num_tokens:
                self._target.sync(self._target.cached_ids[: num_tokens - 1])
            self._running = None

    def _room_for(self, num_prompt: int, params: SamplingParams) -> int:
        """The limit on new tokens."""
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


def play_on(cores: CorePlacement, decoders: Sequence[Decoder], request: Request, num_tokens: int) -> Rounds:
    """A request from its first pass to its last round.

    Only the caches outlive it: state that an interrupt leaves half done elsewhere is rebuilt when the next request
    begins.
    """
    cores.place_pool()
    yield from play(decoders, request, num_tokens)
