"""Specimens compiled in a process of their own, where Triton's interpreter is off: what they take, as JSON.

Arguments: architecture, most rows of a pass, model; then the next three, and so on.
"""

import json
import sys
from dataclasses import asdict

from forerun.backends.gpu.tooling.resources import MATRIX_INSTRUCTIONS
from forerun.backends.gpu.tooling.specimens import specimens


def report(architecture: int, most_rows: int, model: str) -> list[dict[str, object]]:
    return [
        {
            "name": f"{specimen.name} of {specimen.model}, {specimen.num_rows} rows, for sm_{architecture}",
            "is_product": specimen.is_product,
            "kernels": [
                {
                    **asdict(found),
                    "products": found.count(*MATRIX_INSTRUCTIONS),
                    "loop_spills": found.loop_spills,
                    "fits": found.fits,
                }
                for found in specimen.inspect(architecture)
            ],
        }
        for specimen in specimens()
        if specimen.model == model
        if not specimen.is_product or specimen.num_rows <= most_rows
    ]


if __name__ == "__main__":
    arguments = iter(sys.argv[1:])
    reports = [report(int(architecture), int(next(arguments)), next(arguments)) for architecture in arguments]
    sys.stdout.write(json.dumps([found for reported in reports for found in reported]))
