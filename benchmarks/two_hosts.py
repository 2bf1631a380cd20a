"""A target on one host and its drafter on another, and a target shared by both, over a link with a delay.

python benchmarks/two_hosts.py [--target builtin] [--draft builtin-draft] [--num-prompts 3] [--num-new 48]

The hosts are two network namespaces of one machine, see tests/two_hosts.py; needs the superuser. Greedy. Ranks have one
thread each, the drafter one.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from common import Run, ask, config_of, standard_arguments, write_results

from forerun import DraftModel, Engine, NoDrafter, Parallel, SamplingParams
from forerun.core.drafter_config import DrafterConfig
from tests.two_hosts import Host, fault, two_hosts

DELAYS_S: Final = (0.001, 0.014)
PORT: Final = 7070
START_S: Final = 120.0


def main() -> None:
    parser = standard_arguments(__doc__, "two_hosts", num_prompts=3, num_new=48)
    arguments = parser.parse_args()
    if (reason := fault()) is not None:
        sys.exit(f"two_hosts: {reason}")
    arguments.threads = 1
    prompts = [ids for _, ids in ask(arguments, arguments.num_prompts)]
    drafters: dict[str, DrafterConfig] = {"none": NoDrafter(), "draft_model": DraftModel(model=arguments.draft)}
    here: dict[str, Run] = {}
    for name, drafter in (*drafters.items(), ("parallel", Parallel(draft=DraftModel(model=arguments.draft)))):
        here[name] = answer(arguments, prompts, name, drafter=drafter)
    plain = here["none"]
    rows = [row_of("one host", "", run, plain) for run in here.values()]
    torch_run = answer(arguments, prompts, "none", drafter=NoDrafter(), kernels="torch")
    rows.append(row_of("one host, torch's kernels", "", torch_run, plain))
    with TemporaryDirectory() as folder:
        key_file = make_key(Path(folder) / "key")
        for delay_s in DELAYS_S:
            with two_hosts(delay_s) as both:
                rows += rows_of(arguments, prompts, both.hosts, key_file, plain, drafters, f"{1e3 * delay_s:g} ms")
    notes = [
        f"{arguments.target}, draft {arguments.draft}, {len(prompts)} questions x {arguments.num_new} tokens, greedy: "
        "tokens/s of decoding; texts that are those of none on one host; rounds are passes of the target.",
        "The delay is that of each packet each way, so that an answer takes twice as long.",
    ]
    write_results(arguments, "Target and drafter, or ranks of a target, on two hosts", rows, notes)


def rows_of(
    arguments: argparse.Namespace, prompts: Sequence[list[int]], hosts: Sequence[Host], key_file: str, plain: Run,
    drafters: dict[str, DrafterConfig], delay: str,
) -> list[dict[str, object]]:  # fmt: skip
    """The rows of one link."""
    here, there = hosts
    listens, leads = f"{there.address}:{PORT}", f"{here.address}:{PORT}"
    with worker(there, arguments.draft, "--listen", listens, "--key-file", key_file), here.entered():
        drafter = Parallel(address=listens, key_file=key_file, draft=DraftModel(model=arguments.draft))
        run = answer(arguments, prompts, "parallel", drafter=drafter)
        rows = [row_of("drafter on the other", delay, run, plain)]
    for name, drafter in drafters.items():
        joining = (arguments.target, "--role", "target", "--join", leads, "--key-file", key_file)
        with worker(there, *joining), here.entered():
            remote: dict[str, Any] = {"rank_address": leads, "rank_key_file": key_file}
            run = answer(arguments, prompts, name, drafter=drafter, target_ranks=2, remote_ranks=1, **remote)
            rows.append(row_of("a rank of the target on the other", delay, run, plain))
    return rows


def answer(arguments: argparse.Namespace, prompts: Sequence[list[int]], name: str, **settings: Any) -> Run:
    params = SamplingParams(max_new_tokens=arguments.num_new, ignore_eos=True)
    with Engine(config_of(arguments, **settings)) as engine:
        engine.drafter.wait_until_ready(START_S)
        run = Run(name=name, engine=engine, num_threads=1)
        for prompt in prompts:
            run.write(prompt, params)
    return run


def row_of(where: str, delay: str, run: Run, plain: Run) -> dict[str, object]:
    return {
        "": where,
        "delay": delay,
        "drafter": run.name,
        "tokens/s": f"{run.tokens_per_s:.1f}",
        "tokens per round": f"{run.tokens_per_round:.2f}",
        "same texts": run.same_texts(plain),
    }


@contextmanager
def worker(host: Host, *arguments: str) -> Iterator[None]:
    """`forerun worker` on that host."""
    with host.entered():
        process = subprocess.Popen([sys.executable, "-m", "forerun", "worker", *arguments])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def make_key(path: Path) -> str:
    path.touch(mode=0o600)
    path.write_text(os.urandom(32).hex())
    return str(path)


if __name__ == "__main__":
    main()
