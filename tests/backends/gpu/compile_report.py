"""Compile cases compiled in a process of their own, where Triton's interpreter is off: what they take, as JSON.

Arguments: architecture, most rows of a pass, model, a pattern of the cases' names; then the next four, and so on.
"""

import json
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict
from unittest.mock import patch

from forerun.backends.gpu.passes import packed_linear
from tests.backends.gpu.compile_case import CompileCase
from tests.backends.gpu.compile_cases import compile_cases
from tests.backends.gpu.expected_speed import expect
from tests.backends.gpu.resources import MATRIX_INSTRUCTIONS


def report(
    cases: Sequence[CompileCase], architecture: int, max_rows: int, model: str, pattern: str
) -> list[dict[str, object]]:
    return [
        {
            "name": f"{case.name} of {case.model}, {case.num_rows} rows, for sm_{architecture}",
            "is_product": case.is_product,
            "kernels": [
                {
                    **asdict(found),
                    "expected": case.packed and asdict(expect(case.packed, case.num_rows, found)),
                    "products": found.count(*MATRIX_INSTRUCTIONS),
                    "loop_spills": found.loop_spills,
                    "fits": found.fits,
                }
                for found in case.inspect(architecture)
            ],
        }
        for case in cases
        if case.model == model and re.fullmatch(pattern, case.name)
        if not case.is_product or case.num_rows <= max_rows
    ]


if __name__ == "__main__":
    asked = [sys.argv[place : place + 4] for place in range(1, len(sys.argv), 4)]
    with patch.object(packed_linear, "blocks", lambda _: [slice(None)]):  # in one piece, as they take no memory
        cases = [*compile_cases([model for _, _, model, _ in asked])]
    reports = [
        report(cases, int(architecture), int(max_rows), model, pattern)
        for architecture, max_rows, model, pattern in asked
    ]
    sys.stdout.write(json.dumps([found for reported in reports for found in reported]))
