"""Native linear layers compared with torch's and with the memory bandwidth, for one to many rows.

PYTHONPATH=. python benchmarks/native_linear.py [--threads 2] [--formats bfloat16 int8] [--rows 1 8]

Weights are larger than every cache: each call takes the next of several copies. Contestants take turns, and so do the
readings of the bandwidth; all figures are medians.
"""

import warnings
from argparse import Namespace
from collections.abc import Callable, Iterator
from ctypes import byref
from functools import partial
from itertools import cycle
from statistics import median
from time import perf_counter, sleep

import torch
from common import standard_arguments, write_results
from torch import Tensor
from torch.nn import functional

from forerun.backends.cpu.binding import library
from forerun.backends.cpu.linear import PackedLinear
from forerun.model.quantise import dequantise, quantise
from forerun.model.weights import DenseWeight
from tests.backends.cpu.ops import linear_functions

SHAPES = ((8192, 2048), (2048, 2048))  # outputs, inputs
ROWS = (1, 2, 4, 8, 12, 16, 64, 256)
FORMATS = ("bfloat16", "float32", "int8", "int4")
COPIES_BYTES = 320e6
PROBE_BYTES = 1 << 26
PAUSE_S = 0.006
CALLS_IN_A_TURN = 3
Call = Callable[[], object]


def main() -> None:
    parser = standard_arguments(__doc__.splitlines()[0], "native_linear")
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=list(FORMATS))
    parser.add_argument("--rows", nargs="+", type=int, default=list(ROWS))
    parser.add_argument("--num-repeats", type=int, default=12)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")  # torch's own, about its quantised layers
    rows = []
    for num_threads in sorted({1, arguments.threads}):
        torch.set_num_threads(num_threads)
        for shape in SHAPES:
            for name in arguments.formats:
                rows += measure_format(arguments, num_threads, shape, name)
    notes = [
        f"Kernels: {library().forerun_tier().decode()}. GB/s: bytes of the packed weight over the time of a call.",
        "Copy bandwidth counts bytes read and bytes written; times over M=1 are of the native linear.",
        "Torch's columns are its time over the native one: F.linear in the weight's dtype (int8: dynamic), and with "
        "the weight packed once for oneDNN.",
    ]
    write_results(arguments, "Native linear layers", rows, notes)


def dense(weight_OI: torch.Tensor, name: str) -> DenseWeight:
    return DenseWeight(values_OI=weight_OI.to(getattr(torch, name)))


def measure_format(
    arguments: Namespace, num_threads: int, shape: tuple[int, int], name: str
) -> Iterator[dict[str, object]]:
    num_out, num_in = shape
    weight_OI = torch.randn(shape) / num_in**0.5
    weight = quantise(weight_OI, name) if name.startswith("int") else dense(weight_OI, name)
    plain = dequantise(weight) if name.startswith("int") else weight.values_OI
    first = PackedLinear.pack(weight, None)
    count = max(2, round(COPIES_BYTES / first.num_bytes))
    packed = [first, *(PackedLinear.pack(weight, None) for _ in range(count - 1))]
    peers = torch_linears(name, plain, count)
    one_row_s = None
    for num_rows in arguments.rows:
        x_TI = torch.randn(num_rows, num_in)
        contestants = {"native": native_call(packed, x_TI, num_threads), **probes(num_threads)}
        contestants |= {peer: rotate(linears, x_TI.to(plain.dtype)) for peer, linears in peers.items()}
        seconds = medians(contestants, arguments.num_repeats)
        native_s = seconds["native"]
        one_row_s = native_s if num_rows == 1 else one_row_s
        bandwidth = first.num_bytes / native_s
        yield {
            "threads": num_threads,
            "outputs x inputs": f"{num_out} x {num_in}",
            "weight": name,
            "rows": num_rows,
            "us": round(native_s * 1e6),
            "GB/s": round(bandwidth / 1e9, 1),
            "of copy": f"{bandwidth * seconds['copy'] / (2 * PROBE_BYTES):.0%}",
            "of read": f"{bandwidth * seconds['read'] / PROBE_BYTES:.0%}",
            "over M=1": round(native_s / one_row_s, 2) if one_row_s else "",
            "torch": round(seconds["torch"] / native_s, 2) if "torch" in seconds else "",
            "torch packed": round(seconds["packed"] / native_s, 2) if "packed" in seconds else "",
        }


def native_call(packed: list[PackedLinear], x_TI: Tensor, num_threads: int) -> Call:
    linears, y_TO = cycle(packed), torch.empty(len(x_TI), packed[0].descriptor.num_out)
    run, x, y, num_rows = linear_functions().forerun_linear, x_TI.data_ptr(), y_TO.data_ptr(), len(x_TI)
    holds = (x_TI, y_TO)
    return lambda: (run(byref(next(linears).descriptor), x, num_rows, y, None, 0, num_threads), holds)


def torch_linears(name: str, weight_OI: Tensor, count: int) -> dict[str, list[Callable[[Tensor], Tensor]]]:
    """Torch's implementations for this weight, with `count` copies each."""
    if name == "int8":
        return {"torch": [dynamic_int8(weight_OI) for _ in range(count)]}
    if name == "int4":
        return {}
    product = torch.ops.mkldnn._linear_pointwise.default
    copies = [weight_OI.clone() for _ in range(count)]
    for_onednn = [torch.ops.mkldnn._reorder_linear_weight(weight_OI, 1) for _ in range(count)]
    return {
        "torch": [partial(functional.linear, weight=copy) for copy in copies],
        "packed": [lambda x, w=copy: product(x, w, None, "none", [], "") for copy in for_onednn],
    }


def dynamic_int8(weight_OI: Tensor) -> Callable[[Tensor], Tensor]:
    module = torch.nn.Linear(weight_OI.shape[1], weight_OI.shape[0], bias=False)
    module.weight = torch.nn.Parameter(weight_OI)
    return torch.ao.quantization.quantize_dynamic(torch.nn.Sequential(module), {torch.nn.Linear})


def rotate(linears: list[Callable[[Tensor], Tensor]], x_TI: Tensor) -> Call:
    turns = cycle(linears)
    return lambda: next(turns)(x_TI)


def probes(num_threads: int) -> dict[str, Call]:
    """Calls that read and copy memory outside the caches."""
    memory = torch.ones(8, PROBE_BYTES, dtype=torch.uint8)
    places, targets = cycle(memory), cycle([*memory[4:], *memory[:4]])
    read = linear_functions().forerun_read
    return {
        "read": lambda: read(next(places).data_ptr(), PROBE_BYTES, num_threads),
        "copy": lambda: next(targets).copy_(next(places)),
    }


@torch.inference_mode()
def medians(contestants: dict[str, Call], num_repeats: int) -> dict[str, float]:
    """Median seconds of each, measured in turn; the first turn is discarded.

    A turn begins with a pause, in which the threads of the previous contestant stop spinning, and an untimed call.
    """
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(num_repeats + 1):
        for name, call in contestants.items():
            sleep(PAUSE_S)
            call()
            for _ in range(CALLS_IN_A_TURN):
                began = perf_counter()
                call()
                if turn:
                    seconds[name].append(perf_counter() - began)
    return {name: median(times) for name, times in seconds.items()}


if __name__ == "__main__":
    main()
