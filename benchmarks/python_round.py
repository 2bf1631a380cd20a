"""Python time of a decoding round: all that the real engine does in it outside the calls that are native code's work.

python benchmarks/python_round.py [--num-rounds 400]

The built-in pair decodes with a serial draft tree. Timed as native: the executors' passes, choosing and ranking,
moving cache slots. The rest of a round is Python's: what calls these, and what their
results become.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from statistics import median
from time import perf_counter
from typing import Any
from unittest.mock import patch

from common import read_prompts, standard_arguments, write_results

from forerun import DraftModel, Engine, EngineConfig, SamplingParams
from forerun.backends.cpu.backend import CpuBackend
from forerun.decoding.host_loop import Verifier
from forerun.drafting.draft_model import DraftModelDrafter
from forerun.drafting.policies import Policies
from forerun.drafting.tree_policy import TreePolicy
from forerun.model.runner import Runner
from forerun.model.tree_cache import TreeCache
from forerun.text.assembly import TextAssembly

FIXED = DraftModel(adaptive=False, verify_width=8, draft_width=8, depth=5)
DRAFTERS = {
    "8x5": (FIXED, Policies(tree=TreePolicy(min_mass=0.0, looks_up=False))),
    "8x5, lookup": (FIXED, Policies(tree=TreePolicy(min_mass=0.0))),
    "adaptive": (DraftModel(), None),
}
PARTS = ("propose", "verify", "accept", "runner", "rest")
NATIVE, TEXT, REST = "native", "text", "rest"
NUM_NEW = 200
NUM_IDLE_CALLS = 20_000


class Stopwatch:
    """Seconds of watched calls by name, each without the watched calls inside it."""

    def __init__(self) -> None:
        self.overhead_s = 0.0
        self.overhead_s = self._measure_overhead()
        self.reset()

    def reset(self) -> None:
        self.seconds = dict.fromkeys((NATIVE, TEXT, REST, *PARTS), 0.0)
        self.inner_s = 0.0  # of nested calls, including the cost of watching them

    def watch(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: object, **named: object) -> object:
            outer_s, self.inner_s = self.inner_s, 0.0
            began = perf_counter()
            result = call(*args, **named)
            took_s = perf_counter() - began
            self.seconds[name] += took_s - self.inner_s
            self.inner_s = outer_s + took_s + self.overhead_s
            return result

        return timed

    def _measure_overhead(self) -> float:
        """Cost of watching a call, outside the time counted for the call."""
        self.reset()
        seconds = []
        for call in (lambda: None, self.watch(NATIVE, lambda: None)):
            began = perf_counter()
            for _ in range(NUM_IDLE_CALLS):
                call()
            seconds.append(perf_counter() - began)
        return (seconds[1] - seconds[0] - self.seconds[NATIVE]) / NUM_IDLE_CALLS


@contextmanager
def watched(engine: Engine, stopwatch: Stopwatch, *, in_parts: bool) -> Iterator[None]:
    """Let the stopwatch time the calls that the engine makes: native ones and text, or Python's own parts as well."""
    calls = [
        (NATIVE, type(engine._target._executor), "run"), (NATIVE, CpuBackend, "sample"), (NATIVE, TreeCache, "move"),
        (NATIVE, CpuBackend, "topk"), (TEXT, TextAssembly, "add"),
    ]  # fmt: skip
    parts = [
        ("runner", Runner, "forward"), ("runner", Runner, "keep"),
        ("propose", DraftModelDrafter, "propose"), ("verify", Verifier, "choose_safely"),
        ("accept", DraftModelDrafter, "accept"),
    ]  # fmt: skip
    with ExitStack() as patches:
        for name, owner, attribute in calls + parts * in_parts:
            timed = stopwatch.watch(name, getattr(owner, attribute))
            patches.enter_context(patch.object(owner, attribute, timed))
        yield


def play(engine: Engine, temperature: float, num_rounds: int, *, in_parts: bool) -> list[dict[str, float]]:
    """Seconds of every round, by part."""
    stopwatch, rounds = Stopwatch(), []
    params = SamplingParams(max_new_tokens=NUM_NEW, temperature=temperature, seed=1, ignore_eos=True)
    prompts = iter(read_prompts(num_rounds))
    engine.generate(next(prompts), params)  # warm-up
    with watched(engine, stopwatch, in_parts=in_parts):
        while len(rounds) < num_rounds:
            stream = engine.stream(next(prompts), params)
            stopwatch.reset()
            began = perf_counter()
            while next(stream, None) is not None:
                stopwatch.seconds[REST] = perf_counter() - began - stopwatch.inner_s
                rounds.append(stopwatch.seconds)
                stopwatch.reset()
                began = perf_counter()
    return rounds


def row_of(name: str, temperature: float, engine: Engine, num_rounds: int) -> dict[str, object]:
    """A run that watches as few calls as possible, and one that also times Python's parts, which slows it down."""
    whole = play(engine, temperature, num_rounds, in_parts=False)
    apart = play(engine, temperature, num_rounds, in_parts=True)

    def middle(rounds: list[dict[str, float]], part: str) -> str:
        return f"{1e6 * median(spent[part] for spent in rounds):.0f}"

    return {
        "drafter": name,
        "T": temperature,
        "rounds": len(whole),
        "native us": middle(whole, NATIVE),
        "text us": middle(whole, TEXT),
        "**Python us**": middle(whole, REST),
        **{f"{part} us": middle(apart, part) for part in PARTS},
    }


def main() -> None:
    parser = standard_arguments(__doc__, "python_round")
    parser.add_argument("--num-rounds", type=int, default=400)
    arguments = parser.parse_args()
    rows = []
    for name, (drafter, policies) in DRAFTERS.items():
        with Engine(EngineConfig(drafter=drafter, num_threads=arguments.threads), policies=policies) as engine:
            rows += [row_of(name, heat, engine, arguments.num_rounds) for heat in (0.0, 1.0)]
    notes = [
        "Medians over the rounds of the built-in pair. 8x5: up to 5 passes of up to 8 nodes, then 8 rows verified; "
        "adaptive: the default drafter. Native: executors' passes, choosing, ranking and moving of slots, with the "
        "Python inside them. Text: what turning new tokens into text takes. Python: all else. Its parts are of another "
        "run, which watches more calls and is the slower for it; runner is what surrounds an executor's pass or a "
        "commit. What timing costs is taken off.",
    ]
    write_results(arguments, "Python time of one round", rows, notes)


if __name__ == "__main__":
    main()
