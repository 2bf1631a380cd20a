"""SWIFT's strategy: random sets, and at regular intervals one from Bayesian optimisation; the best score seen wins."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, Final

import numpy as np

from forerun.core.errors import ConfigError
from forerun.core.optional_packages import install_command
from forerun.core.sublayers import SkipSet, every_other_layer, skippable
from forerun.drafting.layer_skip.search import Strategy

KAPPA: Final = 2.5  # standard deviations that the upper confidence bound adds to the mean
NOISE: Final = 1e-2  # added to the diagonal of the Gaussian process's kernel
MAX_SEED: Final = 2**32  # exclusive limit of the library's generator
WINDOW: Final = 32  # tokens over which a candidate is scored
SKIP_RATIO: Final = 0.45  # the share of the skippable sublayers that a candidate skips
MAX_STEPS: Final = 1000  # the search ends after more than this many candidates,
PATIENCE: Final = 300  # or after more than this many without gain,
GOOD_ENOUGH: Final = 0.95  # or at a score greater than this
FEWEST_ITEMS: Final = 4  # fewest skippable sublayers with which the skip ratio works


class SwiftStrategy(Strategy):
    """Proposes one set at a time and keeps the best, until a limit is reached. It is scored by the share of the
    answer's first tokens that it predicts (matchness).

    Every candidate skips int(2 (num_layers - 2) SKIP_RATIO) of the skippable sublayers. They are drawn without
    replacement, except for every `bayes_interval`-th candidate: that one maximises an upper confidence bound of a
    Gaussian process (Matern 5/2) over the unit cube with one coordinate per skippable sublayer. The sublayers with the
    largest coordinates are skipped; ties are broken at random. This takes seconds and needs the library
    `bayesian-optimization`, which is imported at the first such candidate.

    A candidate replaces the set in use if its score is strictly greater than the best score so far. Scores are never
    averaged or measured again. The start set, every other layer, is never scored: the best score starts at 0, so the
    first candidate with a score above 0 replaces it.

    Source: SWIFT, arXiv 2410.06916, section 4.1, algorithm 1 and section 4.2, with the rules of its published code. We
    differ once: for a Bayesian candidate that code registers the point inside the cube with the Gaussian process,
    although the score is that of the corner it was rounded to; we register the corner. A repeated corner is registered
    once, with its mean score, since the library prints to the terminal when it gets the same point twice. To score a
    candidate, that code copies the whole cache; ours masks the text after the window, which gives the same scores.

    Args:
        num_layers: layers of the model.
        seed: equal seeds and scores give equal candidates; global generators are not used.
        bayes_interval: number of candidates from one Bayesian candidate to the next.
    """

    is_shaped = False

    def __init__(self, num_layers: int, *, seed: int = 0, bayes_interval: int = 25) -> None:
        self._items = skippable(num_layers)
        self._num_skipped = int(len(self._items) * SKIP_RATIO)
        assert 1 <= self._num_skipped <= len(self._items), f"{self._num_skipped} of {len(self._items)} sublayers"
        self._bayes_interval = bayes_interval
        self._random = np.random.default_rng(seed)
        self._scores: dict[SkipSet, list[float]] = {}
        self._num_stale = 0
        self._is_searching = True
        self.skipped = every_other_layer(num_layers)
        self.best_score = 0.0
        self.num_steps = 0  # candidates scored

    @property
    def share(self) -> float:
        return float(self._is_searching)

    def window(self, num_prompt: int, num_tokens: int) -> range:
        return range(num_prompt, num_prompt + WINDOW if num_tokens > num_prompt + WINDOW + 1 else num_prompt)

    def propose(self, count: int, context: int) -> Sequence[SkipSet]:
        """The next candidate.

        Raises:
            ConfigError: the candidate is a Bayesian one and the library for it is not installed.
        """
        assert self._is_searching, "the search is over"
        if (self.num_steps + 1) % self._bayes_interval == 0:
            point = self._bayesian_point()
            ties = self._random.random(len(self._items))  # more coordinates may end at 1 than are skipped
            chosen = np.lexsort((ties, -point))[: self._num_skipped]
        else:
            chosen = self._random.choice(len(self._items), self._num_skipped, replace=False)
        return [frozenset(self._items[item] for item in chosen)]

    def told(self, skipped: SkipSet, num_hits: float, num_rows: float, *, is_draft: bool = False) -> None:
        if is_draft:
            return
        score = num_hits / num_rows
        self._scores.setdefault(skipped, []).append(score)
        self.num_steps = self.num_steps + 1
        self._num_stale = self._num_stale + 1
        if score > self.best_score:
            self.skipped = skipped
            self.best_score = score
            self._num_stale = 0
        self._is_searching = not (score > GOOD_ENOUGH or self._num_stale > PATIENCE or self.num_steps > MAX_STEPS)

    def _bayesian_point(self) -> np.ndarray:
        """The library's estimate of the point with the highest upper confidence bound: one number per item."""
        corner_scores = {
            tuple(float(item in skipped) for item in self._items): fmean(scores)
            for skipped, scores in self._scores.items()
        }
        return suggest_point(corner_scores, len(self._items), seed=int(self._random.integers(MAX_SEED)))


def suggest_point(scores: Mapping[tuple[float, ...], float], num_dimensions: int, *, seed: int) -> np.ndarray:
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
