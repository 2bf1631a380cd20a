"""Lets a drafter that is the target itself use the target's cache; its rows come after the text."""

from typing import TypeAlias

from forerun.model.executor import Executor, ForwardInput, ForwardOutput, Step
from forerun.model.runner import Runner


class SharedCacheRunner:
    """The target's runner, for a drafter that is the same model. It never changes the text in the cache.

    The keys and values of draft rows are written after the text, and the rows of the next verification overwrite them.
    So the cache is never copied.

    Source: SWIFT, arXiv 2410.06916, section 4 (shared cache); its code copies the cache in every round, ours does not.

    Args:
        owner: the target.
        copy: runs draft passes, bound to the owner's cache; None: the owner runs them.
        copy_share: bytes that a pass of the copy reads, relative to the owner's; used only by a paced owner.
    """

    def __init__(self, owner: Runner, copy: Executor | None = None, copy_share: float = 1.0) -> None:
        self._owner = owner
        self._copy = copy
        self._copy_share = copy_share
        self.spec = owner.spec
        self.device = owner.device
        self.backend = owner.backend
        self.cache = owner.cache

    @property
    def has_copy(self) -> bool:
        """True if draft passes run on a copy of the owner's weights."""
        return self._copy is not None

    @property
    def cached_ids(self) -> list[int]:
        return self._owner.cached_ids

    def forward(self, inputs: ForwardInput) -> ForwardOutput:
        """As Runner.forward; the rows stay in the cache until `drop_rows`."""
        if self._copy is None:
            return self._owner.forward(inputs)
        return self._owner.play(Step(inputs=inputs), executor=self._copy, share=self._copy_share)

    def drop_rows(self) -> None:
        """Drop all rows after the text."""
        self._owner.drop_rows()


DraftRunner: TypeAlias = Runner | SharedCacheRunner  # a draft tree's runner, with a separate cache or with the target's
