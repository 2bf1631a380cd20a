"""Hugging Face transformers in a separate process: `generate` with each of its caches and ways to guess.

Times come from a streamer. In every mode `generate` hands it the tokens of a round at once, as soon as they are chosen,
and its loop reads them on the host anyway; so the times are right and cost a few microseconds a round. (On Apple's mps
alone it hands them over a step late.)
"""

from dataclasses import dataclass, field
from typing import Any, Final

import torch
import transformers
from transformers import AutoModelForCausalLM, CompileConfig, GenerationConfig, StoppingCriteriaList

from forerun.bench.peers.child import Log, serve
from forerun.bench.peers.messages import FILTERS, Answer, PeerPlan, PeerRequest
from forerun.checkpoints.open import open_source

DEFAULT_LOOKUP: Final = {"prompt_lookup_num_tokens": 10, "max_matching_ngram_size": 2}
WARM_UP_TOKENS: Final = 6


@dataclass(slots=True)
class RoundLog:
    """A streamer, in the sense of transformers: it is given the prompt, then the tokens of each round."""

    log: Log = field(default_factory=Log)
    has_prompt: bool = False

    def put(self, token_ids: torch.Tensor) -> None:
        if self.has_prompt:
            self.log.add(token_ids.view(-1).tolist())
        self.has_prompt = True

    def end(self) -> None:
        """The answer is whole; nothing is held back."""


class TransformersWriter:
    """A model, perhaps with an assistant, and what is the same in every call of `generate`."""

    def __init__(self, plan: PeerPlan) -> None:
        torch.set_num_threads(plan.num_threads)
        transformers.logging.set_verbosity_error()
        self._plan = plan
        self._eos_ids = list(open_source(plan.target).stop_ids())
        self._model = load(plan.target, plan)
        self._assistant: Any = None
        self._constant: dict[str, Any] = {}
        match plan.mode:
            case "assisted":
                assert plan.draft is not None, "the catalogue asks for a draft"
                self._assistant = load(plan.draft, plan)
            case "lookup":
                self._constant = {**DEFAULT_LOOKUP, **plan.settings}
            case "static":
                self._constant = {"cache_implementation": "static", "disable_compile": True}
            case "static_compile":
                self._constant = {"cache_implementation": "static", "compile_config": compile_config()}
        self._warm_up()

    def write(self, request: PeerRequest) -> Answer:
        rounds = RoundLog()
        self._generate(request.prompt_ids, self._config(request), streamer=rounds, seed=request.seed)
        return rounds.log.answer()

    def forget(self) -> None:
        """Nothing to do: `generate` begins every text with an empty cache."""

    def close(self) -> None:
        """Nothing to do: the process ends."""

    def _generate(self, prompt_ids: tuple[int, ...], config: GenerationConfig, **extra: Any) -> None:
        torch.manual_seed(extra.pop("seed", 0))
        # An assistant takes its end of text and its manners from its own defaults, not from this call.
        self._model.generation_config = defaults(config)
        if self._assistant is not None:
            self._assistant.generation_config = defaults(config, **self._plan.settings)
            extra["assistant_model"] = self._assistant
        prompt_1T = torch.tensor([prompt_ids], device=self._model.device)
        with torch.inference_mode():
            self._model.generate(
                prompt_1T, attention_mask=torch.ones_like(prompt_1T), generation_config=config, **extra
            )

    def _config(self, request: PeerRequest) -> GenerationConfig:
        sampling: dict[str, Any] = {"do_sample": False}
        if request.temperature > 0.0:
            sampling = {"do_sample": True} | {name: getattr(request, name) for name in FILTERS}
        return GenerationConfig(
            max_new_tokens=request.max_new_tokens,
            eos_token_id=None if request.ignore_eos else self._eos_ids or None,
            pad_token_id=0,
            **sampling,
            **self._constant,
        )

    def _warm_up(self) -> None:
        """Load code, compile, and make the static cache as long as it will ever be: another length compiles anew."""
        config = GenerationConfig(max_length=self._plan.max_length, do_sample=False, pad_token_id=0, **self._constant)
        stop = StoppingCriteriaList([lambda ids_1T, scores: ids_1T.shape[1] > WARM_UP_TOKENS])
        self._generate((0, 0), config, stopping_criteria=stop)


def load(folder: str, plan: PeerPlan) -> Any:
    """The checkpoint in eval mode, in our dtype on our device."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, plan.dtype), local_files_only=True)
    return model.to(plan.device)


def compile_config() -> CompileConfig:
    """The library's own settings for compiling, also where it would not compile by itself, as on a CPU."""
    config = CompileConfig()
    config._compile_all_devices = True
    return config


def defaults(config: GenerationConfig, **settings: Any) -> GenerationConfig:
    """What a model falls back on, instead of what its checkpoint recommends, such as a repetition penalty."""
    return GenerationConfig(eos_token_id=config.eos_token_id, pad_token_id=config.pad_token_id, **settings)


if __name__ == "__main__":
    serve(TransformersWriter)
