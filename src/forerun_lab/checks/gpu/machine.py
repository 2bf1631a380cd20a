"""The GPU, its software, and the two rates that everything else is held against."""

from collections.abc import Iterator
from functools import partial
from importlib.metadata import version

import torch

from forerun_lab.bench.run.ceilings import copies, rate
from forerun_lab.bench.run.machine import describe_machine
from forerun_lab.checks.gpu.cases import Case, Row, Setting

NUM_BUFFERS = 4
BUFFER_BYTES = {"cuda": 1 << 30, "cpu": 1 << 22}
MATRIX_SIZE = {"cuda": 8192, "cpu": 256}


def cases(setting: Setting) -> Iterator[Case]:
    yield Case(name="software", run=partial(software, setting))
    yield Case(name="rates", run=partial(rates, setting))


def software(setting: Setting) -> Iterator[Row]:
    facts: Row = {**describe_machine(), "triton": version("triton")}
    if setting.device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        facts |= {
            "capability": f"{properties.major}.{properties.minor}",
            "multiprocessors": properties.multi_processor_count,
            "l2_bytes": properties.L2_cache_size,
        }
    yield from ({"what": name, "value": value} for name, value in facts.items())


@torch.inference_mode()
def rates(setting: Setting) -> Iterator[Row]:
    """Random values: on zeros and ones a matrix product runs faster than on data."""
    device = setting.device
    place = torch.device(setting.device)
    budget_s = 0.1 if setting.is_rehearsal else 1.0
    buffers = [torch.randn(BUFFER_BYTES[device] // 4, device=device) for _ in range(NUM_BUFFERS)]
    copied = rate(copies(buffers), 2 * BUFFER_BYTES[device], place, budget_s)
    yield {"what": "copy_bytes_per_s", "value": copied.median, "low": copied.low, "high": copied.high}
    read = rate([buffer.sum for buffer in buffers], BUFFER_BYTES[device], place, budget_s)
    yield {"what": "sum_bytes_per_s", "value": read.median, "low": read.low, "high": read.high}
    del buffers
    size = MATRIX_SIZE[device]
    left, right = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    products = rate([lambda: left @ right], 2 * size**3, place, budget_s)
    yield {"what": "matmul_per_s", "value": products.median, "low": products.low, "high": products.high}
