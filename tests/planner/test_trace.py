"""Traces: what a file keeps, and what it refuses."""

from dataclasses import replace
from pathlib import Path

import pytest

from forerun.core.errors import ConfigError
from forerun_lab.planner.trace import AnswerTrace, read_traces, write_traces

TRACE = AnswerTrace(
    prompt_ids=(1, 2),
    token_ids=(5, 6),
    children=((5, 7), (8, 6)),
    log_probs=((-0.25, -1.5), (-0.5, -0.75)),
    temperature=0.7,
    seed=3,
)


def test_a_file_gives_back_what_was_written(tmp_path: Path) -> None:
    traces = [TRACE, replace(TRACE, token_ids=(9, 9), temperature=0.0, seed=None)]
    assert write_traces(tmp_path / "new" / "trace.jsonl", traces) == 2
    assert read_traces(tmp_path / "new" / "trace.jsonl") == traces


def test_what_other_drafters_guessed_is_kept_with_it(tmp_path: Path) -> None:
    counts = {"prompt_lookup": (1, 0), "recycling": (0, 1)}
    of_skips = {"skip_children": ((6, 5), ()), "skip_log_probs": ((-0.5, -1.0), ())}
    trace = replace(TRACE, children=((), ()), log_probs=((), ()), accepted=counts, **of_skips)  # type: ignore[arg-type]
    write_traces(tmp_path / "trace.jsonl", [trace])
    assert read_traces(tmp_path / "trace.jsonl") == [trace]
    assert trace.by_layer_skip().children == ((6, 5), ())
    assert trace.by_layer_skip().log_probs == ((-0.5, -1.0), ())


def test_a_file_of_a_draft_model_alone_is_as_it_always_was(tmp_path: Path) -> None:
    line = (
        '{"prompt_ids": [1, 2], "token_ids": [5, 6], "children": [[5, 7], [8, 6]], '
        '"log_probs": [[-0.25, -1.5], [-0.5, -0.75]], "temperature": 0.7, "seed": 3}'
    )
    (tmp_path / "trace.jsonl").write_text(line)
    assert read_traces(tmp_path / "trace.jsonl") == [TRACE]
    assert TRACE.to_json() == line


def test_an_impossible_child_survives_the_file(tmp_path: Path) -> None:
    trace = replace(TRACE, log_probs=((-0.25, float("-inf")), (-0.5, -0.75)))
    write_traces(tmp_path / "trace.jsonl", [trace])
    assert read_traces(tmp_path / "trace.jsonl")[0].log_probs[0][1] <= -1e9


@pytest.mark.parametrize(
    "changes",
    [
        {"prompt_ids": ()},
        {"token_ids": (), "children": (), "log_probs": ()},
        {"children": ((5, 7),)},
        {"children": ((5, 5), (8, 6))},
        {"children": ((5,), (8, 6))},
        {"log_probs": ((-1.5, -0.25), (-0.5, -0.75))},
        {"log_probs": ((0.5, -1.5), (-0.5, -0.75))},
        {"log_probs": ((float("nan"), -1.5), (-0.5, -0.75))},
        {"skip_children": ((5, 7),)},
        {"skip_children": ((5, 5), (8, 6)), "skip_log_probs": ((-0.25, -1.5), (-0.5, -0.75))},
        {"accepted": {"recycling": (1,)}},
        {"accepted": {"recycling": (1, 2)}},
    ],
)
def test_a_trace_that_fits_no_answer_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        replace(TRACE, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "line 2"),
        ("[]", "line 2"),
        ('{"token_ids": [1]}', "prompt_ids"),
        (TRACE.to_json().replace("5", '"five"', 1), "token_ids[0]"),
        (TRACE.to_json().replace("0.7,", "-1,"), "temperature"),
        (TRACE.to_json().replace('"seed"', '"sead"'), "unknown keys sead"),
        (TRACE.to_json().replace('"seed": 3', '"accepted": {"recycling": [0, -1]}'), ">= 0 - at `$.accepted"),
    ],
)
def test_a_line_that_is_no_trace_is_named_with_its_file(tmp_path: Path, line: str, said: str) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(f"{TRACE.to_json()}\n{line}\n")
    with pytest.raises(ConfigError, match=r"trace\.jsonl, line 2, is not a trace") as caught:
        read_traces(path)
    assert said in str(caught.value)


def test_files_without_traces_say_how_to_make_some(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("\n")
    for name in ("empty.jsonl", "absent.jsonl"):
        with pytest.raises(ConfigError, match="forerun bench trace"):
            read_traces(tmp_path / name)
