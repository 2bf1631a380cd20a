"""SWIFT's strategy: random sets, and at regular intervals one from Bayesian optimisation; the best score seen wins."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, Final, TypeAlias

import numpy as np

from forerun.core.drafter_config import LayerSkip, paper_layer_skip
from forerun.core.errors import ConfigError
from forerun.core.model_spec import ModelSpec
from forerun.core.optional_packages import install_command
from forerun.core.sublayers import NOTHING, SkipSet, every_other_layer, skippable
from forerun.drafting.layer_skip.search import Strategy

Point: TypeAlias = tuple[float, ...]  # in the unit cube, a coordinate per skippable sublayer

PAPERS_OWN: Final = paper_layer_skip()
KAPPA: Final = 2.5  # standard deviations that the upper confidence bound adds to the mean
NOISE: Final = 1e-2  # added to the diagonal of the Gaussian process's kernel
MAX_SEED: Final = 2**32  # exclusive limit of the library's generator
SKIP_RATIO: Final = 0.45  # the share of the skippable sublayers that a candidate skips,
LARGE_RATIO: Final = 0.5  # and that of large models
LARGE: Final = 33.5e9  # parameters, from which names say 34B


class SwiftStrategy(Strategy):
    """Proposes one set at a time and keeps the best, until a limit is reached. It is scored by the share of the
    answer's first tokens that it predicts (matchness).

    Every candidate skips a share `skip_ratio` of the skippable sublayers, rounded down, at least one. They are drawn
    without replacement, except for every `bayes_interval`-th candidate: that one maximises an upper confidence bound of
    a Gaussian process (Matern 5/2) over the unit cube with one coordinate per skippable sublayer. The sublayers with
    the largest coordinates are skipped; ties are broken at random. This takes seconds and needs the library
    `bayesian-optimization`, which is imported at the first such candidate.

    A candidate replaces the set in use if its score is strictly greater than the best score so far. Scores are never
    averaged or measured again. The start set, every other layer, is never scored: the best score starts at 0, so the
    first candidate with a score above 0 replaces it.

    Source: SWIFT, arXiv 2410.06916, section 4.1, algorithm 1 and section 4.2, with the rules of its published code. As
    in that code, the Gaussian process gets the point inside the cube that a Bayesian candidate was rounded from, with
    the candidate's score. A point that comes twice is registered once, with its mean score, since the library prints to
    the terminal when it gets the same point again. To score a candidate, that code copies the whole cache; ours masks
    the text after the window, which gives the same scores.

    Args:
        num_layers: layers of the model, at least 3.
        config: the limits and intervals.
        seed: equal seeds and scores give equal candidates; global generators are not used.
        absent: sublayers that its layers lack.
    """

    is_shaped = False

    def __init__(
        self, num_layers: int, config: LayerSkip = PAPERS_OWN, *, seed: int = 0, absent: SkipSet = NOTHING
    ) -> None:
        self._config = config
        self._items = skippable(num_layers, absent)
        self._num_skipped = max(1, int(len(self._items) * (config.skip_ratio or SKIP_RATIO)))
        self._random = np.random.default_rng(seed)
        self._scores: dict[Point, list[float]] = {}
        self._point: Point = ()  # of the candidate that is being scored
        self._num_stale = 0
        self.is_searching = True
        self.skipped = every_other_layer(num_layers, absent)
        self.best_score = 0.0
        self.num_steps = 0  # candidates scored

    @property
    def num_scored(self) -> int:
        return self.num_steps

    @property
    def matchness(self) -> float | None:
        return self.best_score if self.num_steps else None

    @property
    def share(self) -> float:
        return float(self.is_searching)

    def window(self, num_prompt: int, num_tokens: int) -> range:
        """The window begins with the answer, once the text goes on for two tokens and the root."""
        length = self._config.window
        return range(num_prompt, num_prompt + length if num_tokens > num_prompt + length + 2 else num_prompt)

    def propose(self, count: int, context: int) -> Sequence[SkipSet]:
        """The next candidate.

        Raises:
            ConfigError: the candidate is a Bayesian one and the library for it is not installed.
        """
        assert self.is_searching, "the search is over"
        if self._config.bayes and (self.num_steps + 1) % self._config.bayes_interval == 0:
            point = self._bayesian_point()
            ties = self._random.random(len(self._items))  # more coordinates may end at 1 than are skipped
            chosen = np.lexsort((ties, -point))[: self._num_skipped]
            self._point = tuple(point.tolist())
        else:
            chosen = self._random.choice(len(self._items), self._num_skipped, replace=False)
            self._point = tuple(np.isin(np.arange(len(self._items)), chosen).astype(float).tolist())
        return [frozenset(self._items[item] for item in chosen)]

    def told(self, skipped: SkipSet, num_hits: float, num_rows: float, *, is_draft: bool = False) -> None:
        if is_draft:
            return
        config = self._config
        score = num_hits / num_rows
        self._scores.setdefault(self._point, []).append(score)
        self.num_steps = self.num_steps + 1
        self._num_stale = self._num_stale + 1
        if score > self.best_score:
            self.skipped = skipped
            self.best_score = score
            self._num_stale = 0
        is_over = score > config.max_score or self._num_stale > config.patience or self.num_steps > config.max_steps
        self.is_searching = not is_over

    def _bayesian_point(self) -> np.ndarray:
        """The library's estimate of the point with the highest upper confidence bound: one number per item."""
        scores = {point: fmean(scores) for point, scores in self._scores.items()}
        return suggest_point(scores, len(self._items), seed=int(self._random.integers(MAX_SEED)))


def paper_skip_ratio(spec: ModelSpec) -> float:
    """The skip ratio that the paper takes for a model of this size, which is undivided.

    Source: SWIFT, arXiv 2410.06916, section 5.
    """
    return LARGE_RATIO if spec.num_parameters >= LARGE else SKIP_RATIO


def suggest_point(scores: Mapping[Point, float], num_dimensions: int, *, seed: int) -> np.ndarray:
    """The point of the unit cube to try next. The process is fitted again each time, as the library does anyway."""
    library = load_library()
    optimizer = library.BayesianOptimization(
        f=None,
        pbounds={str(dimension): (0.0, 1.0) for dimension in range(num_dimensions)},
        acquisition_function=library.acquisition.UpperConfidenceBound(kappa=KAPPA),
        random_state=seed,
        verbose=0,
    )
    optimizer.set_gp_params(alpha=NOISE)
    for point, score in scores.items():
        optimizer.space.register(np.array(point), score)  # the optimizer's own register() lists all points each time
    suggestion = optimizer.suggest()
    return np.array([suggestion[str(dimension)] for dimension in range(num_dimensions)])


def load_library() -> Any:
    """Import the optional library, which takes a second.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        import bayes_opt
    except ImportError as error:
        raise ConfigError(
            f"the search of the paper needs bayesian-optimization ({error}): "
            f"{install_command('bayesian-optimization')}, or choose another search"
        ) from error
    return bayes_opt
