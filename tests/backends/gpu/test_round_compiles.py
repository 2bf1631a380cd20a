"""A whole round is compiled for a GPU as it would be launched there."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

SCRIPT = Path(__file__).with_name("compile_round.py")
KERNELS = {
    "embed_kernel", "qkv_kernel", "attend_tree", "attend_text", "linear_add_kernel", "linear_silu_kernel",
    "linear_kernel", "head_kernel", "join_samples_kernel", "join_topk_kernel", "grow_kernel", "verify_rows_kernel",
    "walk_kernel", "lookup_kernel", "move_slots_kernel", "shape_kernel", "cutoffs_kernel", "draw_kernel",
    "count_kernel",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("weight_format", ["plain", "int8", "int4"])
@pytest.mark.parametrize("architecture", [80, 90])
def test_every_kernel_of_a_round_compiles_as_it_is_launched(weight_format: str, architecture: int) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-W", "error::UserWarning", str(SCRIPT), weight_format, str(architecture)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    launched = json.loads(done.stdout)
    assert launched.keys() == KERNELS
    num_passes = 8 * (2 + 1) + 1  # eight rounds of two draft passes and one of the target; a wide pass
    assert launched["linear_add_kernel"] == 2 * num_passes
