"""What the keys and values of a text take on a CPU: windows with a margin, full layers whole, borrowers nothing."""

from forerun.core.model_spec import WINDOW_MARGIN, WINDOW_STEP, kv_bytes_on_cpu
from tests.tiny import plain_spec

KEPT = 100 + WINDOW_MARGIN + 2 * WINDOW_STEP  # slots of a layer with a window of 100


def test_layers_with_a_window_count_up_to_what_they_keep() -> None:
    spec = plain_spec(num_layers=4, window=100, sliding_layers=(0, 1, 3), max_positions=50_000)
    layer = spec.kv_bytes_per_token(2) // 4
    assert kv_bytes_on_cpu(spec, 1000, 2) == 4 * layer * 1000
    assert kv_bytes_on_cpu(spec, 40_000, 2) == layer * (40_000 + 3 * KEPT)


def test_layers_that_borrow_keys_and_values_count_nothing() -> None:
    spec = plain_spec(num_layers=4, window=100, sliding_layers=(0, 2), num_borrowing_layers=2, max_positions=50_000)
    assert kv_bytes_on_cpu(spec, 40_000, 2) == spec.kv_bytes_per_token(2) // 4 * (40_000 + KEPT)


def test_without_windows_the_whole_text_counts() -> None:
    spec = plain_spec()
    assert kv_bytes_on_cpu(spec, 40_000, 2) == 40_000 * spec.kv_bytes_per_token(2)
