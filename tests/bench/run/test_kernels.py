"""What a pass costs op by op: the work is that of the model, and the times add up."""

from collections.abc import Mapping, Sequence

import pytest

from forerun.backends.dtypes import runs_native
from forerun.checkpoints.open import open_source
from forerun.core.config import EngineConfig
from forerun.core.drafter_config import BUILTIN_TARGET
from forerun.core.errors import ConfigError
from forerun.model.runner import PREFILL_ROWS
from forerun_lab.bench.records.kernel_costs import KernelCosts, OpCost, PassCosts
from forerun_lab.bench.run import kernel_times
from forerun_lab.bench.run.kernel_times import LEAST_REPEATS
from forerun_lab.bench.run.kernels import KernelRequest, measure_kernels

IS_NATIVE = runs_native("float32", "cpu")
needs_native = pytest.mark.skipif(not IS_NATIVE, reason="the native kernels were not built")
SPEC = open_source(BUILTIN_TARGET).spec()
LONG_PROMPT = PREFILL_ROWS + 3
OPS = {"embed", "norm + qkv", "rope_append", "tree_attention", "attention_out", "norm + gate_up + silu_mul", "mlp_out"}


def request(*, rows: Sequence[int] = (1,), prompts: Sequence[int] = (), **changes: object) -> KernelRequest:
    tier = changes.pop("tier", None)
    config = EngineConfig(target=BUILTIN_TARGET, **{"dtype": "float32", "num_threads": 2} | changes)  # type: ignore[arg-type]
    return KernelRequest(config=config, tier=tier, rows=rows, prompts=prompts, budget_s=0.0)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("READ_BYTES", "LEAST_READ_BYTES", "MOST_READ_BYTES"):
        monkeypatch.setattr(kernel_times, name, 1 << 16)


@pytest.fixture(scope="module")
def measured() -> KernelCosts:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("READ_BYTES", "LEAST_READ_BYTES", "MOST_READ_BYTES"):
            patch.setattr(kernel_times, name, 1 << 16)
        return measure_kernels(request(rows=(1, 4), prompts=(5, LONG_PROMPT)))


def by_name(whole: PassCosts) -> Mapping[str, OpCost]:
    return {op.name: op for op in whole.ops}


@needs_native
def test_a_pass_has_the_ops_of_the_program_with_what_is_fused_with_them(measured: KernelCosts) -> None:
    one, four, prompt, long_prompt = measured.passes
    assert by_name(one).keys() == by_name(four).keys() == OPS | {"norm + head"}
    assert by_name(prompt).keys() == by_name(long_prompt).keys() == OPS  # nobody asks for a prompt's logits
    assert [whole.name for whole in measured.passes] == ["1", "4", "prompt 5", f"prompt {LONG_PROMPT}"]


@needs_native
def test_the_work_is_that_of_the_model(measured: KernelCosts) -> None:
    one, four, prompt, _ = measured.passes
    layer = SPEC.hidden_size * (2 * SPEC.q_size + 2 * SPEC.kv_size + 3 * SPEC.intermediate_size)
    weights = SPEC.num_layers * layer
    for whole, num_rows, num_scored in ((one, 1, 1), (four, 4, 4), (prompt, 5, 0)):
        linears = [op for op in whole.ops if op.weights]
        head = num_scored * SPEC.hidden_size * SPEC.vocab_size
        assert sum(op.multiply_adds for op in linears) == num_rows * weights + head
        assert sum(op.num_bytes for op in linears) >= 4 * (weights + (SPEC.hidden_size if num_scored else 0))
    assert {op.num_ops for op in one.ops if op.name not in ("embed", "norm + head")} == {SPEC.num_layers}


@needs_native
def test_attention_reads_the_text_once_and_multiplies_what_each_row_sees(measured: KernelCosts) -> None:
    seen = {"1": 65, "4": 4 * 64 + 1 + 3 * 2, "prompt 5": 1 + 2 + 3 + 4 + 5}  # a root and three children
    read = {"1": 65, "4": 68, "prompt 5": 5}
    for whole in measured.passes[:3]:
        (attention,) = [op for op in whole.ops if op.name == "tree_attention"]
        assert attention.multiply_adds == SPEC.num_layers * 2 * SPEC.q_size * seen[whole.name]
        assert attention.num_bytes == SPEC.num_layers * 2 * SPEC.kv_size * 4 * read[whole.name]


@needs_native
def test_ops_and_what_is_left_over_are_the_pass(measured: KernelCosts) -> None:
    assert measured.repeats == LEAST_REPEATS
    assert measured.num_threads in (1, 2)
    for whole in measured.passes:
        assert whole.ops_s + whole.left_s == pytest.approx(whole.pass_s)
        assert whole.pass_s > 0


@needs_native
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"dtype": "float64"}, "do not compute in float64: give --dtype bfloat16 or float32"),
        ({"tier": "mmx"}, "tier 'mmx' is not in this build"),
        ({"rows": ()}, "nothing to measure"),
        ({"rows": (0,)}, "a pass of 0 rows"),
        ({"prompts": (SPEC.max_positions + 1,)}, f"more than the {SPEC.max_positions} positions"),
    ],
)
def test_what_cannot_be_measured_is_refused(changes: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        measure_kernels(request(**changes))  # type: ignore[arg-type]
