"""An EAGLE-3 head whose rounds run on the device.

Legend: T rows, N slots that a pass may see, S slots, E tree slots of a row, H hidden size of the head, F features of a
token, G size of a feature, W columns of scores.
"""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from torch import Tensor, where

from forerun.backends.device_rounds import RoundPlan
from forerun.backends.gpu.head_on_device import HeadOnDevice, HostHead
from forerun.backends.gpu.row_table import PREFIX_LEN
from forerun.backends.gpu.shared_memory import SPLIT
from forerun.backends.gpu.tree.device_tree import DeviceTree
from forerun.model.executor import Executor, ForwardInput, Step
from forerun.model.runner import PREFILL_ROWS, Runner


@runtime_checkable
class HostEagle(HostHead, Protocol):
    """The executor of an EAGLE-3 head."""

    def starting_from(self, states_TH: Tensor) -> Executor:
        """An executor of one pass whose rows start from these states."""
        ...

    def pass_at(
        self, ids_T: Tensor, states_TH: Tensor, is_known_T: Tensor, places_T: Tensor, slots_T: Tensor, sees_TN: Tensor
    ) -> Tensor:
        """The last layer's outputs [T, H] of rows in these slots."""
        ...

    def next_states(self, outputs_TH: Tensor) -> Tensor:
        """The states from which the rows of the next tokens start."""
        ...

    def logits(self, outputs_TH: Tensor) -> Tensor:
        """[T, W] of such outputs."""
        ...


class EagleOnDevice(HeadOnDevice):
    """An EAGLE-3 head, whose rows start from states.

    A token's row starts from the state in the slot of the token before it. A token of the text leaves there what the
    head reads of the target's features, a drafted node the head's own state, until it is verified. A state of zeros is
    not known: the target restored that token from a saved text. A row behind it stays unseen.

    Attributes:
        states_SH: the states.
    """

    kind = "EAGLE-3"
    rereads = True
    lag = 1
    _executor: HostEagle

    def __init__(self, runner: Runner, plan: RoundPlan, tree: DeviceTree, target: Runner) -> None:
        super().__init__(runner, plan, tree, target)
        cache = runner.cache
        shape = tree.shape
        assert isinstance(self._executor, HostEagle), f"the executor of an EAGLE-3 head, not {type(self._executor)}"
        self._stride = shape.stride
        size = self._executor.body.hidden_size
        self.states_SH = cache.keys_LSKD.new_zeros(cache.capacity, size)
        self.kept = self.states_SH[None, None, :, None]
        self._outputs_TH = cache.keys_LSKD.new_zeros(self.rows.max_rows, size)
        self._most_behind_text = plan.num_slots + shape.horizon  # slots of a round, and of one still in flight

    def start_request(self, token_ids: Sequence[int], owner: str) -> None:
        super().start_request(token_ids, owner)
        self.states_SH.zero_()

    def keep_features(self, features_TFG: Tensor, slots_T: Tensor, places_T: Tensor) -> None:
        self.states_SH.index_copy_(0, slots_T, self._states(features_TFG))

    def _read_text(self, token_ids: Sequence[int], first: int) -> None:
        runner = self.runner
        num_tokens = len(token_ids)
        for start in range(first, num_tokens, PREFILL_ROWS):
            end = min(start + PREFILL_ROWS, num_tokens)
            inputs = ForwardInput(
                token_ids=list(token_ids[start:end]), positions=list(range(start, end)), first_slot=start,
                prefix_len=start, num_logit_rows=0,
            )  # fmt: skip
            states_TH = self.states_SH[start - 1 : end - 1]
            runner.play(Step(inputs=inputs), executor=self._executor.starting_from(states_TH))
            runner.keep(list(range(end - start)), inputs.token_ids)

    def pass_layers(self, num_rows: int, num_splits: int) -> None:
        rows = self.rows
        executor = self._executor
        states_SH = self.states_SH
        slots_T = rows.slots[:num_rows].long()
        starts_TH, sees_TN = self._read_table(num_rows, num_splits)
        is_known_T = (starts_TH != 0).any(1)
        outputs_TH = executor.pass_at(
            rows.token_ids[:num_rows].long(), starts_TH, is_known_T, rows.positions[:num_rows].long(), slots_T, sees_TN
        )
        self._outputs_TH[:num_rows] = outputs_TH
        states_SH.index_copy_(0, slots_T, executor.next_states(outputs_TH))

    def write_scores(self, num_rows: int, first_row: int) -> None:
        logits_TW = self._executor.logits(self._outputs_TH[first_row:num_rows])
        self.score_rows.scores[: num_rows - first_row] = logits_TW

    def _read_table(self, num_rows: int, num_splits: int) -> tuple[Tensor, Tensor]:
        """The states from which the rows of the table start, [T, H], and which slots each of them sees, bool [T, N]."""
        rows = self.rows
        prefix_len = self.rows.header[PREFIX_LEN.value : PREFIX_LEN.value + 1]
        slots_S = self._slots_S
        num_seen = min(len(slots_S), (num_splits + 1) * SPLIT + self._most_behind_text)
        tree_TE = rows.tree_slots[: num_rows * self._stride].view(num_rows, self._stride).long()
        counts_T = (rows.lengths[:num_rows] - prefix_len).long()
        above_T = tree_TE.gather(1, (counts_T - 2).clamp(min=0)[:, None])[:, 0]
        above_T = where(counts_T > 1, above_T, prefix_len - 1).clamp(min=0)
        own_TE = rows.slots[:num_rows, None].long()
        seen_TE = where(slots_S[: self._stride] < counts_T[:, None], tree_TE, own_TE).clamp(max=num_seen - 1)
        is_text_N = self._executor.is_known_S[:num_seen] & (slots_S[:num_seen] < prefix_len)
        return self.states_SH[above_T], is_text_N.repeat(num_rows, 1).scatter_(1, seen_TE, True)
