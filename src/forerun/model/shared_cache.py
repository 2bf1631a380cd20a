"""A model's cache shared with a drafter that is the same model; its rows stand behind the text."""

from typing import TypeAlias

from forerun.core.model_spec import ModelSpec
from forerun.model.backend import ModelBackend
from forerun.model.executor import Executor
from forerun.model.inputs import ForwardInput
from forerun.model.outputs import ForwardOutput
from forerun.model.runner import Runner
from forerun.model.step import Step
from forerun.model.tree_cache import TreeCache


class SharedCacheRunner:
    """The target's runner as its own drafter sees it. The text in the cache is the owner's: nothing here changes it.

    Keys and values of draft rows overwrite none of the text, and are overwritten by the rows of the next verification.
    So there is one cache and never a copy of it.

    Source: SWIFT, arXiv 2410.06916, section 4 (shared cache); its code copies the cache in every round, ours does not.

    Args:
        owner: the target.
        copy: what runs draft passes, bound to the owner's cache; None: the owner's own weights.
        copy_share: bytes of a pass of the copy relative to the owner's; used only by a paced owner.
    """

    def __init__(self, owner: Runner, copy: Executor | None = None, copy_share: float = 1.0) -> None:
        self._owner, self._copy, self._copy_share = owner, copy, copy_share
        self.spec: ModelSpec = owner.spec
        self.device: str = owner.device
        self.backend: ModelBackend = owner.backend
        self.cache: TreeCache = owner.cache

    @property
    def has_copy(self) -> bool:
        """True where draft passes do not run on the owner's own weights."""
        return self._copy is not None

    @property
    def cached_ids(self) -> list[int]:
        return self._owner.cached_ids

    def forward(self, inputs: ForwardInput) -> ForwardOutput:
        """As Runner.forward; the rows stay until they are given back."""
        if self._copy is None:
            return self._owner.forward(inputs)
        return self._owner.play(Step(inputs=inputs), executor=self._copy, share=self._copy_share)

    def drop_rows(self) -> None:
        """Forget all rows behind the text."""
        self._owner.drop_rows()


DraftRunner: TypeAlias = Runner | SharedCacheRunner  # a draft tree's runner: with a separate cache, or the target's
