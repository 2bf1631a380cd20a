"""Times of machines that are not here."""

import random
from dataclasses import replace
from pathlib import Path

import pytest

from forerun.checkpoints.known_models import known_models
from forerun.core.errors import ConfigError
from forerun_lab.planner.roofline import (
    BYTES_PER_WEIGHT,
    Machine,
    SizedModel,
    machine_named,
    pace_of,
    roofline_profile,
)
from tests.tiny_families import family_spec

H800 = machine_named("8xH800")
PUBLISHED = [  # SwiftSpec: model, GPUs, rows, milliseconds
    ("Llama-3-70B", 4, 4, 10.32),
    ("Llama-3-70B", 4, 8, 10.39),
    ("Llama-3-70B", 4, 16, 13.25),
    ("Qwen2-72B", 6, 8, 10.48),
    ("Qwen2-72B", 8, 8, 10.34),
    ("Llama-3.2-3B", 4, 8, 1.9),
    ("Qwen2-1.5B", 2, 8, 3.25),
    ("Qwen2-1.5B", 8, 8, 3.73),
]


def sized(name: str, weight_bits: int = 4) -> SizedModel:
    return SizedModel(name=name, spec=known_models()[name], weight_bits=weight_bits)


@pytest.mark.parametrize(("name", "units", "rows", "milliseconds"), PUBLISHED)
def test_published_times_come_out(name: str, units: int, rows: int, milliseconds: float) -> None:
    assert 1e3 * pace_of(H800, sized(name), units, 512).step_s(rows) == pytest.approx(milliseconds, rel=0.01)


def test_bytes_of_a_pass_count_the_head_once_and_the_embedding_never() -> None:
    tied = sized("Llama-3.2-1B", 16)
    untied = sized("Llama-3.1-8B", 16)
    assert tied.pass_bytes(0) / 1e9 == pytest.approx(2.47, rel=0.01)
    assert untied.pass_bytes(0) / 1e9 == pytest.approx(15.0, rel=0.01)
    assert untied.pass_bytes(1000) - untied.pass_bytes(0) == 1000 * untied.spec.kv_bytes_per_token(2)


@pytest.mark.parametrize(
    ("hidden_size", "mlp_size", "units", "attention_us", "mlp_us"),
    [  # SwiftSpec, table 8: products with the sum behind them, at 8 rows; the MLP's of small models take longer
        (2048, 8192, 4, 5.9, None),
        (3072, 8192, 4, 6.4, None),
        (4096, 14336, 4, 7.7, 10.5),
        (8192, 28672, 4, 11.72, 24.3),
        (8192, 28672, 8, 13.3, 19.9),
    ],
)
def test_published_sums_over_units_come_out(
    hidden_size: int, mlp_size: int, units: int, attention_us: float, mlp_us: float | None
) -> None:
    def product_us(num_in: int) -> float:
        weights = num_in * hidden_size / units * BYTES_PER_WEIGHT[4]
        return 1e6 * (
            weights / (H800.share * 1e9 * H800.bandwidth_gb_s) + H800.all_reduce_s(units, 8 * hidden_size * 2)
        )

    assert product_us(hidden_size) == pytest.approx(attention_us, rel=0.09)
    assert mlp_us is None or product_us(mlp_size) == pytest.approx(mlp_us, rel=0.04)


def test_splits_on_which_a_model_does_not_fit_are_left_out() -> None:
    profile = roofline_profile(H800, sized("Llama-3-70B", 16), sized("Llama-3.2-1B", 16))
    assert (min(profile.target), max(profile.target), min(profile.draft)) == (2, 8, 1)
    assert profile.source == "roofline"
    with pytest.raises(ConfigError, match="needs 141 GB"):
        roofline_profile(machine_named("1xH200"), sized("Llama-3-70B", 16), sized("Llama-3.2-1B"))


def test_models_that_ranks_cannot_share_are_planned_on_one_unit_or_refused() -> None:
    target = sized("Llama-3-70B")
    draft = sized("Llama-3.2-1B")
    unlike = replace(draft, spec=family_spec(random.Random(1), "gemma3_text", full_head_dim=16))
    assert set(roofline_profile(H800, target, unlike).draft) == {1}
    with pytest.raises(ConfigError, match=r"has experts.*measure it with --calibrate"):
        replace(draft, spec=family_spec(random.Random(1), "qwen3_moe"))


def test_a_machine_of_ones_own_is_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    text = (
        'unit = "GPU"\nnum_units = 2\nmemory_gb = 24\nbandwidth_gb_s = 1000\nshare = 0.5\nteraflops = 100\n'
        "layer_us = { 1 = 10, 2 = 20 }\nrow_cost = [[16, 1.5], [8, 1.0]]\n"
    )
    path.write_text(text)
    machine = machine_named(str(path))
    assert isinstance(machine, Machine)
    assert (machine.name, machine.num_units, machine.row_cost) == ("mine", 2, ((8, 1.0), (16, 1.5)))
    assert machine.all_reduce_s(2, 2**17) == 0.0
    path.write_text(text + "all_reduce_us = { 2 = 5 }\nlink_gb_s = 100\n")
    assert machine_named(str(path)).all_reduce_s(2, 1e6) == pytest.approx(15e-6)
    for broken in (
        text.replace("share", "shared"), text.replace("24", "0"), "num_units = ", text + 'more = "x"\n',
        text + "link_gb_s = 0\n",
    ):  # fmt: skip
        path.write_text(broken)
        with pytest.raises(ConfigError, match=r"mine\.toml describes no machine"):
            machine_named(str(path))


def test_unknown_names_are_answered_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="8xH800"):
        machine_named("7xH800")
    with pytest.raises(ConfigError, match="cannot be read"):
        machine_named("absent.toml")
    with pytest.raises(ConfigError, match="4, 8, 16"):
        sized("Llama-3-70B", 3)
