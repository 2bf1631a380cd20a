"""Hugging Face transformers in a separate process: `generate` with each of its caches and speculation methods.

Times are taken by a streamer. In every mode `generate` gives it the tokens of a round together, as soon as they are
chosen, and its loop reads them on the host anyway; so the times are right, at a cost of a few microseconds per round.
(On Apple's mps it gives them one step late.)
"""

from dataclasses import dataclass, field
from typing import Any, Final

import torch
import transformers
from transformers import AutoModelForCausalLM, CompileConfig, GenerationConfig, StoppingCriteriaList

from forerun.checkpoints.open import open_source
from forerun_lab.bench.peers.messages import FILTERS, PeerError, PeerPlan, PeerRequest
from forerun_lab.bench.peers.process import Arrivals, serve
from forerun_lab.bench.records.answers import Turn

DEFAULT_LOOKUP: Final = {"prompt_lookup_num_tokens": 10, "max_matching_ngram_size": 2}
WARM_UP_TOKENS: Final = 6


@dataclass(slots=True)
class RoundLog:
    """A streamer for transformers: it receives the prompt, then the tokens of each round."""

    arrivals: Arrivals = field(default_factory=Arrivals)
    has_prompt: bool = False

    def put(self, token_ids: torch.Tensor) -> None:
        if self.has_prompt:
            self.arrivals.add(token_ids.view(-1).tolist())
        self.has_prompt = True

    def end(self) -> None:
        """Do nothing, because no tokens are buffered."""


class TransformersWriter:
    """A model, an optional assistant, and the arguments that every call of `generate` shares."""

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
                if open_source(plan.draft).vocabulary_map() is not None:
                    raise PeerError(
                        "it cannot use a draft with only a part of the target's tokens: give another one with --draft"
                    )
                self._assistant = load(plan.draft, plan)
            case "lookup":
                self._constant = {**DEFAULT_LOOKUP, **plan.settings}
            case "static":
                self._constant = {"cache_implementation": "static", "disable_compile": True}
            case "static_compile":
                self._constant = {"cache_implementation": "static", "compile_config": compile_config()}
        self._warm_up()

    def write(self, request: PeerRequest) -> Turn:
        rounds = RoundLog()
        self._generate(request.prompt_ids, self._config(request), streamer=rounds, seed=request.seed)
        return rounds.arrivals.turn(len(request.prompt_ids))

    def forget(self) -> None:
        """Do nothing: `generate` begins every text with an empty cache."""

    def close(self) -> None:
        """Do nothing: the process ends."""

    def _generate(self, prompt_ids: tuple[int, ...], config: GenerationConfig, **extra: Any) -> None:
        torch.manual_seed(extra.pop("seed", 0))
        # An assistant takes its end-of-text token and sampling settings from its own defaults, not from this call.
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
        """Compile the model and allocate the static cache at its final length; another length would compile again."""
        config = GenerationConfig(max_length=self._plan.max_length, do_sample=False, pad_token_id=0, **self._constant)
        stop = StoppingCriteriaList([lambda ids_1T, scores: ids_1T.shape[1] > WARM_UP_TOKENS])
        self._generate((0, 0), config, stopping_criteria=stop)


def load(folder: str, plan: PeerPlan) -> Any:
    """The checkpoint in eval mode, in our dtype on our device."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, plan.dtype), local_files_only=True)
    return model.to(plan.device)


def compile_config() -> CompileConfig:
    """The library's default compile settings, enabled on all devices; by default it does not compile on a CPU."""
    config = CompileConfig()
    config._compile_all_devices = True
    return config


def defaults(config: GenerationConfig, **settings: Any) -> GenerationConfig:
    """Default settings that replace a checkpoint's own, which may include a repetition penalty, for example."""
    return GenerationConfig(eos_token_id=config.eos_token_id, pad_token_id=config.pad_token_id, **settings)


if __name__ == "__main__":
    serve(TransformersWriter)
