"""An EAGLE-3 head whose layers the native kernels run in one call: torch's small calls took most of a pass.

Legend: T rows, H hidden size of the head.
"""

from dataclasses import replace

from torch import Tensor

from forerun.backends.cpu.executor import NativeExecutor
from forerun.backends.cpu.lowering import Lowering
from forerun.drafting.heads.eagle import EagleEnds
from forerun.drafting.heads.eagle_program import EMBEDDED, EagleWeights, eagle_program
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

    def __init__(self, head: EagleEnds, weights: HeadWeights, cache: TreeCache) -> None:
        super().__init__(head.spec.body, cache, head.states)
        spec = self._spec = head.spec
        source = EagleWeights(weights, spec.body.hidden_size)
        self.head = head
        self.layers = NativeExecutor(Lowering(spec.body, eagle_program(spec), source, cache))
        self._known_S = self.is_known_S.numpy()  # the same memory

    def compute(self, inputs: ForwardInput, states_TH: Tensor) -> ForwardOutput:
        """One pass; `features` of its output are the rows' next states, [T, 1, H]."""
        num_rows, spec, program = len(states_TH), self._spec, self.layers.fused
        program.make_room(num_rows)
        program.buffer("x", num_rows).copy_(states_TH)
        program.buffer(EMBEDDED, num_rows).copy_(self.head.embed(self.ids(inputs.token_ids)))
        self.layers.run(self._knowing(inputs))
        plain_TH, normed_TH = program.buffer("x", num_rows), program.buffer("h", num_rows)
        outputs_TH = normed_TH if spec.norms_logits else plain_TH
        states_TH = normed_TH if spec.norms_state else plain_TH
        logits = self.head.output(outputs_TH[num_rows - inputs.num_logit_rows :])
        return ForwardOutput(logits=logits, features=states_TH[:, None].clone())

    def _knowing(self, inputs: ForwardInput) -> ForwardInput:
        """The inputs of a pass that attends to no slot without a row: such a slot is not part of the prefix."""
        known_S = self._known_S[: inputs.prefix_len]
        if known_S.all():
            return inputs
        first = int(known_S.argmin())
        return replace(inputs, prefix_len=first, ancestry=self.visible(inputs).numpy()[:, first:])
