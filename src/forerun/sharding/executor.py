"""A pass of a model that several ranks share, on one of them."""

from forerun.core.model_spec import ModelSpec
from forerun.core.sublayers import NOTHING, SkipSet
from forerun.model.backend import ModelBackend
from forerun.model.executor import Executor, Observer
from forerun.model.inputs import ForwardInput
from forerun.model.outputs import ForwardOutput
from forerun.model.rank_group import RankGroup
from forerun.model.tree_cache import TreeCache
from forerun.model.weights import WeightSource
from forerun.sharding.plan import ShardPlan


class SharedExecutor:
    """Runs this rank's part of a pass; the logits are those of the whole model, on every rank.

    Args:
        spec: of the whole model.
        weights: of this rank.
        cache: of this rank's key and value heads.
    """

    def __init__(
        self,
        spec: ModelSpec,
        weights: WeightSource,
        cache: TreeCache,
        unused: SkipSet = NOTHING,
        *,
        backend: ModelBackend,
        plan: ShardPlan,
        group: RankGroup,
    ) -> None:
        self._vocab_size, self._cache, self._group = spec.vocab_size, cache, group
        self._part: Executor = backend.executor(plan.local(spec), weights, cache, unused, group)

    def run(self, inputs: ForwardInput, observe: Observer | None = None) -> ForwardOutput:
        with self._cache.tell(inputs):
            try:
                return self._run(inputs, observe)
            except BaseException:
                self._group.lose()  # the others are in the midst of a pass that this rank does not finish
                raise

    def _run(self, inputs: ForwardInput, observe: Observer | None) -> ForwardOutput:
        output = self._part.run(inputs, observe)
        if inputs.num_logit_rows:
            logits = self._group.join_columns(output.logits)[:, : self._vocab_size]
        else:
            logits = output.logits.new_empty(0, self._vocab_size)
        return ForwardOutput(logits=logits, features=output.features)
