"""The native executor: a whole program in one call of the C++ library.

Activations are float32 throughout; weights and cache keep their own dtype. The order of operations for a row is fixed,
so its result depends neither on the other rows nor on the number of threads, to the last bit.
"""

import weakref
from collections.abc import Callable
from ctypes import byref, c_void_p
from functools import partial
from time import perf_counter
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from forerun.backends.backend import DraftLayers
from forerun.backends.cpu.binding import library
from forerun.backends.cpu.draft_linear import DraftLinear
from forerun.backends.cpu.host_group import HostGroup
from forerun.backends.cpu.layouts import FORMATS, Buffer, NativeOp, Pass
from forerun.backends.cpu.lowering import Lowering
from forerun.backends.cpu.num_threads import ThreadChooser
from forerun.core.errors import ContextOverflowError
from forerun.core.stop_flag import stop_address
from forerun.core.sublayers import Sublayer
from forerun.core.threads import kernel_threads
from forerun.model.executor import ForwardInput, ForwardOutput, ModelExecutor, Observer
from forerun.model.tree_cache import TreeCache

OUTPUT: Final = "logits"  # the buffer that gets new memory for each run
# Multiplications in one call. A pass with more, such as a long prompt, runs op by op, so that Ctrl-C works in between.
# A call has 3 us of overhead; this many multiplications take 10 to 60 ms on two cores.
MOST_WORK_AT_ONCE: Final = 5e9
MOST_TIMED_ROWS: Final = 16  # only passes of up to this many rows (decoding) are timed to choose the thread count


class NativeExecutor(ModelExecutor):
    """A lowered program, which is bound to weights and a cache; `fused` are its ops as `run` runs them."""

    def __init__(self, lowering: Lowering, group: HostGroup | None = None) -> None:
        self.lowering = lowering
        self._group = group
        self.fused = NativeProgram(lowering, fuse=True)
        self._stepwise: NativeProgram | None = None
        self._chooser = ThreadChooser()
        can_stop = group is None  # other ranks wait for all of its sums
        self._pass = PassBuffers(lowering.sublayers, lowering.cache, can_stop=can_stop)

    def run(self, inputs: ForwardInput, observe: Observer | None = None) -> ForwardOutput:
        """Run the program; logits and features are float32.

        `observe` is called after each op that computes something, with the buffer it wrote. Ops then run one by one,
        unfused.
        """
        logits = torch.empty(inputs.num_logit_rows, self.lowering.buffers.widths[OUTPUT])
        features = None
        if inputs.taps:
            features = torch.empty(len(inputs.token_ids), len(inputs.taps), self.lowering.spec.hidden_size)
        output = ForwardOutput(logits=logits, features=features)
        one_pass = self._pass.fill(inputs, features)
        if observe is None:
            self._run_fused(one_pass, output.logits)
        else:
            self._run_stepwise(inputs, one_pass, output, observe)
        if self._group is not None:
            self._group.require_all()
        return output

    def _run_fused(self, one_pass: Pass, logits: Tensor) -> None:
        """Run the pass with the number of threads that `ThreadChooser` chooses."""
        num_threads = self._chooser.threads(kernel_threads())
        num_rows = one_pass.num_rows
        stops = library().forerun_num_stops()
        began = perf_counter()
        self.fused.run(one_pass, logits, num_threads=num_threads)
        if num_rows <= MOST_TIMED_ROWS:
            elapsed_s = perf_counter() - began
            self._chooser.told(num_rows, elapsed_s, is_stopped=library().forerun_num_stops() != stops)

    def embed(self, token_ids: Tensor) -> Tensor:
        return self.lowering.embed(token_ids)

    def output(self) -> DraftLinear | None:
        """Shared if it is as narrow in memory as a draft's own copy would be."""
        head = self.lowering.head
        assert head is not None, "a model computes logits"
        is_plain = head.descriptor.format in (FORMATS["float32"], FORMATS["bfloat16"])
        return None if is_plain or self._group is not None else DraftLinear(head)

    def calls(self, inputs: ForwardInput) -> list[Callable[[], None]]:
        """One function per fused op. Called in order they run one pass. Valid until the next pass is run."""
        logits = torch.empty(inputs.num_logit_rows, self.lowering.buffers.widths[OUTPUT])
        one_pass = self._pass.fill(inputs, None)
        return [partial(self.fused.run, one_pass, logits, op, op + 1) for op in range(len(self.fused.ops))]

    def _run_stepwise(self, inputs: ForwardInput, one_pass: Pass, output: ForwardOutput, observe: Observer) -> None:
        if self._stepwise is None:
            self._stepwise = NativeProgram(self.lowering, fuse=False)
        is_selected = False
        for number, op in enumerate(self.lowering.ops):
            is_selected = is_selected or (op.kind == "norm" and op.sublayer is None)
            num_rows = inputs.num_logit_rows if is_selected else len(inputs.token_ids)
            if num_rows == 0 or not op.is_part_of(inputs.skipped, inputs.taps):
                continue
            self._stepwise.run(one_pass, output.logits, number, number + 1)
            match op.writes:
                case "logits":
                    observe(op, output.logits)
                case "features":
                    assert output.features is not None, "a tap that is part of a pass"
                    observe(op, output.features[:, : inputs.taps.index(op.layer) + 1])
                case written:
                    observe(op, self._stepwise.buffer(self.lowering.buffers.name(written, op.layer), num_rows))


class NativeLayers(DraftLayers):
    """A program without an embedding and an output, which begins with given buffers."""

    def __init__(self, lowering: Lowering) -> None:
        self.lowering = lowering
        self._executor = NativeExecutor(lowering)

    def run(self, inputs: ForwardInput, x_TH: Tensor, h_TH: Tensor) -> Tensor:
        buffers = self._executor.fused
        outputs_TH = buffers.fill("x", x_TH)
        buffers.fill("h", h_TH)
        self._executor.run(inputs)
        return outputs_TH


class NativeProgram:
    """Lowered ops in the C++ library with their own buffers, run in one call.

    Args:
        fuse: see `Lowering.lower`.
    """

    def __init__(self, lowering: Lowering, *, fuse: bool) -> None:
        ops = self.ops = lowering.lower(fuse=fuse)
        self._work_of_row = sum(op.linear.num_in * op.linear.num_out for op in ops) + lowering.work_of_experts
        self._widths = lowering.buffers.widths
        self._holds = lowering.holds
        self._max_rows = 0
        self._rooms: list[dict[str, Tensor]] = []  # the last one is in use
        self._output_number = list(self._widths).index(OUTPUT)
        self._handle = library().forerun_program_new(
            byref(lowering.shape), (NativeOp * len(ops))(*ops), len(ops), len(self._widths)
        )
        weakref.finalize(self, library().forerun_program_free, self._handle)
        self._run = library().forerun_program_run

    def run(
        self,
        one_pass: Pass,
        output: Tensor,
        first_op: int = 0,
        last_op: int | None = None,
        num_threads: int | None = None,
    ) -> None:
        """Run ops [first_op, last_op), at least one.

        Args:
            output: contiguous float32 memory for the output buffer.
            num_threads: None for torch's number of threads.

        Raises:
            ContextOverflowError: the machine has too little memory for the pass.
        """
        self._make_room(one_pass.num_rows)
        last_op = len(self.ops) if last_op is None else last_op
        num_threads = kernel_threads() if num_threads is None else num_threads
        stride = last_op - first_op if one_pass.num_rows * self._work_of_row <= MOST_WORK_AT_ONCE else 1
        for op in range(first_op, last_op, stride):
            has_room = self._run(
                self._handle,
                one_pass,
                self._output_number,
                output.data_ptr(),
                op,
                op + stride,
                num_threads,
            )
            require_room(has_room, one_pass.num_rows)

    def buffer(self, name: str, num_rows: int) -> Tensor:
        """The first rows of a buffer, without a copy."""
        return self._rooms[-1][name][:num_rows]

    def fill(self, name: str, rows_TN: Tensor) -> Tensor:
        """Copy rows into a buffer that the next pass reads; returns the buffer's rows."""
        self._make_room(len(rows_TN))
        return self.buffer(name, len(rows_TN)).copy_(rows_TN)

    def _make_room(self, num_rows: int) -> None:
        """Allocate larger buffers if needed, in an order such that an interrupt leaves the library with valid buffers.

        The old buffers are freed only after the library has the addresses of the new ones.
        """
        if num_rows <= self._max_rows:
            return
        buffers = {name: torch.zeros(num_rows, 0 if name == OUTPUT else width) for name, width in self._widths.items()}
        described = (Buffer * len(self._widths))(
            *(Buffer(buffers[name].data_ptr(), width) for name, width in self._widths.items())
        )
        self._max_rows = 0  # the next pass makes room again if this is interrupted: only then is the last room in use
        self._rooms.append(buffers)
        require_room(library().forerun_program_set_buffers(self._handle, described, num_rows), num_rows)
        self._max_rows = num_rows
        del self._rooms[:-1]


def require_room(has_room: bool, num_rows: int) -> None:
    """Raise ContextOverflowError if the library could not allocate memory."""
    if not has_room:
        raise ContextOverflowError(
            f"this machine has not enough memory left for a pass of {num_rows} rows over a text this long: shorten the "
            "prompt, or lower max_length or the number of threads"
        )


class PassBuffers:
    """The arguments of a pass in the library's format, filled in for each pass in reused memory.

    An interrupt at any point leaves this in a state from which the next pass is filled in correctly.

    Args:
        cache: holds the text that passes read.
        can_stop: the flag of the thread that runs a pass ends it, see `stopped_by`.
    """

    def __init__(self, sublayers: dict[Sublayer, int], cache: TreeCache, *, can_stop: bool) -> None:
        self._cache = cache
        self._sublayers = sublayers
        self._can_stop = can_stop
        self._skipped = np.zeros(max(1, len(sublayers)), np.uint8)
        self._skipped_now: frozenset[Sublayer] | None = frozenset()  # None: being changed
        self._rows = np.zeros((2, 0), np.int64)  # token ids and positions
        self._ancestry = np.zeros(0, np.bool_)
        self._pass = Pass()

    def fill(self, inputs: ForwardInput, features: Tensor | None) -> Pass:
        """The pass in the library's format, valid until the next call. Taps write to `features`."""
        one_pass = self._pass
        num_rows = len(inputs.token_ids)
        rows = self._rows
        if num_rows > rows.shape[1]:
            rows = self._rows = np.zeros((2, num_rows), np.int64)
        rows[0, :num_rows] = inputs.token_ids
        rows[1, :num_rows] = inputs.positions
        one_pass.token_ids = address(rows)
        one_pass.positions = one_pass.token_ids + rows.strides[0]
        one_pass.num_rows = num_rows
        one_pass.first_slot = inputs.first_slot
        one_pass.prefix_len = inputs.prefix_len
        one_pass.num_logit_rows = inputs.num_logit_rows
        one_pass.num_committed = self._cache.committed_len
        one_pass.ancestry = None if inputs.ancestry is None else self._copy_ancestry(inputs.ancestry)
        one_pass.row_skips = None if inputs.row_skips is None else self._gate(inputs.row_skips)
        one_pass.taps = None if features is None else self._tap(inputs.taps, features)
        one_pass.stop = stop_address() if self._can_stop else None
        if inputs.skipped != self._skipped_now:
            self._skip(inputs.skipped)
        return one_pass

    def _tap(self, taps: tuple[int, ...], features: Tensor) -> int:
        self._taps = np.full(max(1, len(self._sublayers) // 2), -1, np.int32)  # kept alive while the library uses it
        self._taps[list(taps)] = range(len(taps))
        self._pass.features = features.data_ptr()
        self._pass.num_taps = len(taps)
        return self._taps.ctypes.data

    def _copy_ancestry(self, ancestry: NDArray[np.bool_]) -> int:
        size = ancestry.size
        room = self._ancestry
        if size > len(room):
            room = self._ancestry = np.zeros(2 * size, np.bool_)
        room[:size].reshape(ancestry.shape)[...] = ancestry
        return address(room)

    def _gate(self, row_skips: NDArray[np.bool_]) -> int:
        num_sublayers = len(self._sublayers)
        assert row_skips.shape[1:] == (num_sublayers,), f"row skips {row_skips.shape}, {num_sublayers} sublayers"
        self._row_skips = np.ascontiguousarray(row_skips)  # kept alive as above
        return self._row_skips.ctypes.data

    def _skip(self, skipped: frozenset[Sublayer]) -> None:
        self._skipped_now = None  # so that after an interrupt the array is filled in again
        self._skipped[:] = 0
        self._skipped[[self._sublayers[name] for name in skipped]] = 1
        self._pass.skipped = self._skipped.ctypes.data if skipped else c_void_p()
        self._skipped_now = skipped


def address(array: NDArray[np.generic]) -> int:
    """The address of an array's memory; several times faster than `array.ctypes.data`."""
    return array.__array_interface__["data"][0]  # type: ignore[no-any-return]
