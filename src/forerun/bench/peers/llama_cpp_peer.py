"""llama.cpp in a separate process, through llama-cpp-python: plain, with prompt lookup and with a draft model."""

from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

from forerun.bench.peers.child import Log, serve
from forerun.bench.peers.gguf_cache import draft_file, target_file
from forerun.bench.peers.llama_context import Context
from forerun.bench.peers.llama_sampler import Sample, sampler
from forerun.bench.peers.messages import Answer, PeerPlan, PeerRequest
from forerun.checkpoints.open import open_source

Ids = npt.NDArray[np.intc]
Drafter = Callable[[Ids], Ids]  # llama-cpp-python's LlamaDraftModel: maps the text so far to guesses

NO_GUESS: Final = np.zeros(0, dtype=np.intc)


class LlamaWriter:
    """llama.cpp's own speculative loop (examples/speculative-simple) on its C functions.

    We do not use `Llama.generate`: with a draft it computes logits for the whole prompt and copies every row of them.
    """

    def __init__(self, plan: PeerPlan) -> None:
        self._plan = plan
        self._eos_ids = frozenset(open_source(plan.target).stop_ids())
        self._target = Context(target_file(plan), plan, is_flash=bool(plan.settings.get("flash_attention")))
        self._draft: DraftChain | None = None
        self._drafter: Drafter = self._open_drafter(plan)
        self.write(WARM_UP)
        self.forget()

    def write(self, request: PeerRequest) -> Answer:
        """Generate an answer. Each round verifies root and guesses in one pass, and keeps the sampler's tokens."""
        log = Log()
        ids = np.empty(len(request.prompt_ids) + request.max_new_tokens, dtype=np.intc)
        length = len(request.prompt_ids)
        ids[:length] = request.prompt_ids
        self._target.hold(ids[: length - 1])
        stop_ids = frozenset() if request.ignore_eos else self._eos_ids
        with sampler(request) as sample:
            while length < len(ids):
                guesses = self._drafter(ids[:length])[: len(ids) - length - 1]
                self._target.extend(np.concatenate((ids[length - 1 : length], guesses)))
                new = choose(self._target, sample, guesses, stop_ids)
                ids[length : length + len(new)] = new
                length += len(new)
                self._target.truncate(length - 1)
                log.add(new)
                if new[-1] in stop_ids:
                    break
        return log.answer()

    def forget(self) -> None:
        self._target.truncate(0)
        if self._draft is not None:
            self._draft.context.truncate(0)

    def close(self) -> None:
        self._target.close()
        if self._draft is not None:
            self._draft.context.close()

    def _open_drafter(self, plan: PeerPlan) -> Drafter:
        match plan.mode:
            case "plain":
                return lambda ids: NO_GUESS
            case "lookup":
                lookup: Drafter = LlamaPromptLookupDecoding(
                    max_ngram_size=int(plan.settings.get("max_ngram_size", 2)),
                    num_pred_tokens=int(plan.settings.get("num_pred_tokens", 10)),
                )
                return lookup
            case "draft":
                self._draft = DraftChain(Context(draft_file(plan), plan, is_flash=False), plan)
                return self._draft
            case _:
                raise AssertionError(f"no such mode: {plan.mode}")


class DraftChain:
    """A chain of the draft model's likeliest tokens, cut where their probability is below `p_min`.

    The cache is kept between rounds, so that only tokens after a wrong guess are computed again.
    """

    def __init__(self, context: Context, plan: PeerPlan) -> None:
        self.context = context
        self._num_pred_tokens = int(plan.settings.get("num_pred_tokens", 4))
        self._p_min = float(plan.settings.get("p_min", 0.0))

    def __call__(self, ids: Ids) -> Ids:
        self.context.hold(ids[:-1])
        guesses = np.empty(self._num_pred_tokens, dtype=np.intc)
        last = ids[-1:]
        for place in range(min(self._num_pred_tokens, self.context.size - len(ids))):
            self.context.extend(last)
            guess, probability = self.context.likeliest()
            if probability < self._p_min:
                return guesses[:place]
            guesses[place] = guess
            last = guesses[place : place + 1]
        return guesses[: max(0, min(self._num_pred_tokens, self.context.size - len(ids)))]


def choose(target: Context, sample: Sample, guesses: Ids, stop_ids: frozenset[int]) -> list[int]:
    """The sampler's tokens row by row, up to the first that differs from the guess there or ends the text."""
    new: list[int] = []
    for row in range(len(guesses) + 1):
        new.append(sample(target, row))
        if new[-1] in stop_ids or row == len(guesses) or new[-1] != guesses[row]:
            break
    return new


WARM_UP: Final = PeerRequest(
    prompt_ids=(0, 0), max_new_tokens=4, temperature=0.0, top_k=0, top_p=1.0, min_p=0.0, seed=0, ignore_eos=True
)

if __name__ == "__main__":
    serve(LlamaWriter)
