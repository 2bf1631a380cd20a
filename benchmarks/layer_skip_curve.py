"""What the set in use is truly worth as searching goes on: our search and SWIFT's in a real run.

python benchmarks/layer_skip_curve.py [--num-prompts 60] [--picture layer_skip_search.png]

Both engines answer the same prompts. After every answer their sets are noted with the time that searching has taken by
then. Each set is then scored on texts that neither search has seen: chains of four draft steps, as real drafts run.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from common import WITHOUT_LOOKUP, read_prompts, standard_arguments, write_results
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from forerun import Engine, EngineConfig, LayerSkip, NoDrafter, SamplingParams
from forerun.core.drafter_config import DrafterConfig, paper_layer_skip
from forerun.core.sublayers import SkipSet
from forerun.drafting.layer_skip.drafter import search_of
from forerun.drafting.layer_skip.gated import CHAIN, GatedSkips
from forerun.drafting.layer_skip.probe_rows import RiderLayout, Riders
from forerun.drafting.layer_skip.speed_model import SpeedModel
from forerun.drafting.policies import Policies

NUM_HELD_OUT = 16
NUM_NEW = 128
INK, OURS, PAPERS = "#333333", "#1f5fa8", "#c4561d"


@dataclass(kw_only=True)
class Search:
    """One way to search, and what it had in use after each answer."""

    name: str
    engine: Engine
    colour: str
    searched_s: list[float] = field(default_factory=list)
    sets: list[SkipSet] = field(default_factory=list)

    def note(self) -> None:
        search = search_of(self.engine.drafter)
        assert search is not None, "a drafter that skips layers"
        self.searched_s.append(search.spent_s)
        self.sets.append(search.skipped)


class Truth:
    """The chance that a guess of a set is right, on held-out texts."""

    def __init__(self, prompts: Sequence[str], params: SamplingParams) -> None:
        self._engine = Engine(EngineConfig(drafter=NoDrafter(), num_threads=torch.get_num_threads()))
        self._layout = RiderLayout(self._engine.spec.num_layers)
        self._texts = []
        for prompt in prompts:
            prompt_ids = self._engine.encode(prompt)
            answer = self._engine.generate(prompt_ids, params).token_ids
            self._texts.append((len(prompt_ids), [*prompt_ids, *answer]))
        self._known: dict[SkipSet, float] = {}

    @torch.inference_mode()
    def chance(self, skipped: SkipSet) -> float:
        if skipped not in self._known:
            counts = [self._count(num_prompt, text, skipped) for num_prompt, text in self._texts]
            self._known[skipped] = sum(hits for hits, _ in counts) / sum(rows for _, rows in counts)
        return self._known[skipped]

    def _count(self, num_prompt: int, text: list[int], skipped: SkipSet) -> tuple[int, int]:
        runner = self._engine._target
        runner.sync(text[:-1])
        hits = rows = 0
        for start in range(num_prompt - 1, len(text) - 1 - CHAIN, CHAIN):
            riders = Riders(token_ids=text[start : start + CHAIN], start=start, skipped=(skipped,))
            logits = runner.forward(self._layout.ride_alone(riders, runner.cache.reserve(CHAIN)))
            runner.cache.truncate(runner.cache.committed_len)
            guesses = logits.argmax(-1).tolist()
            hits += sum(map(int.__eq__, guesses, text[start + 1 : start + 1 + CHAIN]))
            rows += CHAIN
        return hits, rows


def engine_of(drafter: DrafterConfig, policies: Policies | None = None) -> Engine:
    return Engine(EngineConfig(drafter=drafter, num_threads=torch.get_num_threads()), policies=policies)


def draw(axes: Axes, search: Search, worth: Sequence[float]) -> None:
    milliseconds = [1e3 * seconds for seconds in search.searched_s]
    axes.step(milliseconds, worth, where="post", color=search.colour, label=search.name, linewidth=2)
    axes.plot(milliseconds[-1:], worth[-1:], "o", color=search.colour)


def picture(path: Path, searches: Sequence[Search], worth: dict[str, list[float]]) -> None:
    figure = Figure(figsize=(7.2, 3.6), layout="constrained")
    axes = figure.add_subplot()
    for search in searches:
        draw(axes, search, worth[search.name])
    axes.set_xscale("log")
    axes.axhline(1.0, color=INK, linewidth=0.8, linestyle=":")
    axes.set_xlabel("time spent on searching, ms (after each answer)")
    axes.set_ylabel("expected speed over plain\ndecoding, on held-out text")
    axes.legend(frameon=False)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = standard_arguments(__doc__ or "", "layer_skip_curve")
    parser.add_argument("--num-prompts", type=int, default=60)
    parser.add_argument("--picture", type=Path, default=Path("layer_skip_search.png"))
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    params = SamplingParams(max_new_tokens=NUM_NEW, ignore_eos=True)
    prompts = read_prompts(arguments.num_prompts)
    truth = Truth(read_prompts(NUM_HELD_OUT, skip=arguments.num_prompts), params)
    searches = [
        Search(name="gated, 1 % of the time", engine=engine_of(LayerSkip(), WITHOUT_LOOKUP), colour=OURS),
        Search(name="paper", engine=engine_of(paper_layer_skip()), colour=PAPERS),
    ]
    for search in searches:
        search.note()
    for prompt in prompts:
        for search in searches:
            search.engine.generate(prompt, params)
            search.note()
    gated = search_of(searches[0].engine.drafter)
    assert isinstance(gated, GatedSkips), "the first searches with gates"
    worth = {search.name: worths(search, truth, gated.search.speed_model) for search in searches}
    picture(arguments.picture, searches, worth)
    write_results(
        arguments,
        "Searching for what to skip: the set in use, on held-out text",
        [row for search in searches for row in rows_of(search, truth, worth[search.name])],
        [
            f"Built-in target, greedy, {arguments.num_prompts} prompts x {NUM_NEW} tokens. Chance: of a right guess in "
            f"{NUM_HELD_OUT} held-out answers, in chains of {CHAIN} draft steps. Worth: expected speed over plain "
            "decoding with that chance, by the measured costs of passes."
        ],
    )


def worths(search: Search, truth: Truth, speed_model: SpeedModel) -> list[float]:
    context = speed_model.costs.context
    plain = speed_model.plain_speed()
    return [speed_model.speed(truth.chance(skipped), skipped, context) / plain for skipped in search.sets]


def rows_of(search: Search, truth: Truth, worth: Sequence[float]) -> list[dict[str, object]]:
    numbers = sorted({number for number in (0, 1, 2, 4, 8, 16, 32) if number < len(worth)} | {len(worth) - 1})
    return [
        {
            "search": search.name,
            "after answers": number,
            "searched, ms": f"{1e3 * search.searched_s[number]:.0f}",
            "skipped": len(search.sets[number]),
            "chance": f"{truth.chance(search.sets[number]):.3f}",
            "worth": f"{worth[number]:.3f}",
        }
        for number in numbers
    ]


if __name__ == "__main__":
    main()
