"""An EAGLE-3 head whose layers the native kernels run in one call: torch's small calls took most of a pass.

Legend: T rows, H hidden size of the head.
"""

from torch import Tensor

from forerun.backends.cpu.executor import NativeExecutor
from forerun.backends.cpu.lowering import Lowering
from forerun.drafting.heads.eagle_network import EagleHead
from forerun.drafting.heads.eagle_program import EagleWeights, eagle_program
from forerun.drafting.heads.executor import HeadExecutor
from forerun.drafting.heads.layer import HeadWeights
from forerun.model.inputs import ForwardInput
from forerun.model.outputs import ForwardOutput
from forerun.model.tree_cache import TreeCache


class NativeEagleExecutor(HeadExecutor):
    """A head with its cache.

    Args:
        head: without its layers.
        weights: those of its layers.
    """

    def __init__(self, head: EagleHead, weights: HeadWeights, cache: TreeCache) -> None:
        super().__init__(head.spec.body, cache, head.states)
        self.head = head
        source = EagleWeights(weights, self.body.hidden_size)
        self.layers = NativeExecutor(
            Lowering(self.body, eagle_program(head.spec), source, cache, known_S=self.is_known_S)
        )

    def compute(self, inputs: ForwardInput, states_TH: Tensor) -> ForwardOutput:
        """One pass; `features` of its output are the rows' next states, [T, 1, H]."""
        head = self.head
        buffers = self.layers.fused
        outputs_TH = buffers.fill("x", states_TH)
        buffers.fill("h", head.embed(self.ids(inputs.token_ids)))
        self.layers.run(inputs)
        logits = head.logits(outputs_TH[len(outputs_TH) - inputs.num_logit_rows :])
        return ForwardOutput(logits=logits, features=head.next_states(outputs_TH)[:, None].clone())
