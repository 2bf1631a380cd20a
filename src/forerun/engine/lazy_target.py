"""A target that is loaded when its drafter first needs it: a draft head shares its weights, a draft model does not."""

from collections.abc import Callable

from forerun.model.runner import Runner


class LazyTarget:
    """Loads the target once.

    Args:
        load: called with the number of cache rows needed after the text.
    """

    def __init__(self, load: Callable[[int], Runner]) -> None:
        self._load = load
        self._verify_width = 0
        self._loaded: Runner | None = None

    def load(self, verify_width: int) -> Runner:
        """The target, with room for trees of this many nodes; a later call may not ask for more."""
        if self._loaded is None:
            self._loaded = self._load(rows_behind(verify_width))
            self._verify_width = verify_width
        assert verify_width <= self._verify_width, f"{verify_width} nodes, room for {self._verify_width}"
        return self._loaded

    @property
    def loaded(self) -> Runner | None:
        """The target, if it is loaded."""
        return self._loaded

    def load_rows(self, num_rows: int) -> Runner:
        """The target, with this many cache rows after the text."""
        assert self._loaded is None, "a drafter that needs other rows has loaded it"
        self._loaded = self._load(num_rows)
        return self._loaded

    def close(self) -> None:
        """End the other ranks of a loaded target."""
        if self._loaded is not None:
            self._loaded.close()


def rows_behind(verify_width: int) -> int:
    """Cache rows after the text: for a round, for another round launched before the first has ended, and a scratch row
    that is never read."""
    return 2 * verify_width + 1
