"""A program in the C library: ops over named buffers, run by one call."""

import weakref
from collections.abc import Mapping, Sequence
from ctypes import byref
from typing import Final

import torch
from torch import Tensor

from forerun.backends.cpu.binding import library
from forerun.backends.cpu.layouts import Buffer, NativeOp, Pass, Shape
from forerun.core.errors import ContextOverflowError

# A longer pass, as a long prompt's, is run op by op, so that Ctrl-C is heard in between: a call takes 3 us, so many
# multiplications take 10 to 60 ms on two cores.
MOST_WORK_AT_ONCE: Final = 5e9


class NativeProgram:
    """Ops bound to weights, a cache and buffers of their own.

    Args:
        shape: the model and its cache.
        ops: in order; they name buffers by their place in `widths`.
        widths: every buffer's name and floats per row.
        output: the buffer whose memory each run is given.
        holds: whatever owns memory that `shape` and `ops` point to.
    """

    def __init__(
        self, shape: Shape, ops: Sequence[NativeOp], widths: Mapping[str, int], output: str, holds: Sequence[object]
    ) -> None:
        self.num_ops = len(ops)
        self._work_of_row = sum(op.linear.num_in * op.linear.num_out for op in ops)
        self._widths, self._holds, self._max_rows = dict(widths), list(holds), 0
        self._rooms: list[dict[str, Tensor]] = []  # the last is in use, the others until the library knows of it
        self._output, self._output_number = output, list(widths).index(output)
        self._handle = library().forerun_program_new(byref(shape), (NativeOp * len(ops))(*ops), len(ops), len(widths))
        weakref.finalize(self, library().forerun_program_free, self._handle)
        self._run = library().forerun_program_run

    def run(self, one_pass: Pass, output: Tensor, first_op: int = 0, last_op: int | None = None) -> None:
        """Run ops [first_op, last_op), of which there is one at least, on torch's number of threads.

        Args:
            output: contiguous float32 for the rows of the output buffer.

        Raises:
            ContextOverflowError: the machine's memory does not hold what the pass needs.
        """
        if one_pass.num_rows > self._max_rows:
            self._make_room(one_pass.num_rows)
        last_op, num_threads = self.num_ops if last_op is None else last_op, torch.get_num_threads()
        stride = last_op - first_op if one_pass.num_rows * self._work_of_row <= MOST_WORK_AT_ONCE else 1
        for op in range(first_op, last_op, stride):
            has_room = self._run(
                self._handle, one_pass, self._output_number, output.data_ptr(), op, op + stride, num_threads,
            )  # fmt: skip
            require_room(has_room, one_pass.num_rows)

    def buffer(self, name: str, num_rows: int) -> Tensor:
        """The first rows of a buffer, as they are."""
        return self._rooms[-1][name][:num_rows]

    def _make_room(self, num_rows: int) -> None:
        """Larger buffers. In an order in which an interrupt leaves the library no memory that is freed or too small."""
        buffers = {
            name: torch.zeros(num_rows, 0 if name == self._output else width) for name, width in self._widths.items()
        }
        described = (Buffer * len(self._widths))(
            *(Buffer(buffers[name].data_ptr(), width) for name, width in self._widths.items())
        )
        self._rooms.append(buffers)
        require_room(library().forerun_program_set_buffers(self._handle, described, num_rows), num_rows)
        self._max_rows = num_rows
        del self._rooms[:-1]


def require_room(has_room: bool, num_rows: int) -> None:
    """Raise ContextOverflowError where the library found no memory."""
    if not has_room:
        raise ContextOverflowError(
            f"this machine has not enough memory left for a pass of {num_rows} rows over a text this long: shorten the "
            "prompt, or lower max_length or the number of threads"
        )
