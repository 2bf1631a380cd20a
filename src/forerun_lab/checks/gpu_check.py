"""All measurements on a machine with an NVIDIA GPU, in one command of at most nine minutes.

scripts/gpu_check [--only SECTIONS] [--quick] [--rehearse] [--minutes 9] [--out FILE]

Sections: machine, suite (the tests that need a GPU), kernels, passes, rounds, peers, ranks (where there are several
GPUs), faults, bits, sweep. Each runs in processes of its own; the results file is written anew whenever a section is
done, and now and then while it runs.
`--rehearse` runs all of them with tiny shapes on the CPU in Triton's interpreter, and lists at the end what can only be
measured on a GPU.
"""

import argparse
import json
import re
import signal
import sys
import tempfile
import time
from dataclasses import asdict, replace
from datetime import date
from pathlib import Path
from typing import Any

from forerun_lab.checks.gpu.cases import ROOT, SECTIONS, Outcome, Section, Setting
from forerun_lab.checks.gpu.render import REHEARSAL_NOTE, left_to_a_gpu, render, summary
from forerun_lab.checks.gpu.supervise import Supervisor

TITLE = "forerun on one GPU"
WRITE_EVERY_S = 5.0
REHEARSAL_MINUTES = 6.0  # enough on a busy machine too


class Results:
    """The results file and the Markdown beside it."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        self._place = arguments.out
        self.outcomes: dict[str, Outcome] = {}
        self._began = time.time()
        self._written_at = 0.0

    @property
    def facts(self) -> dict[str, object]:
        rows = self.outcomes["machine"].rows if "machine" in self.outcomes else []
        return {str(row["what"]): row["value"] for row in rows}

    def update(self, name: str, outcome: Outcome, *, is_done: bool) -> None:
        self.outcomes[name] = outcome
        if is_done or time.time() - self._written_at > WRITE_EVERY_S:
            self.write()

    def write(self) -> None:
        facts = self.facts
        if self._arguments.commit:
            facts["commit"] = self._arguments.commit
        if self._place is None and ("gpu" in facts or not self.is_waiting_for_name):
            self._place = default_place(facts, is_rehearsal=self._arguments.rehearse)
        if self._place is None:
            return
        self._written_at = time.time()
        record = {
            "title": TITLE,
            "is_rehearsal": self._arguments.rehearse,
            "arguments": {name: str(value) for name, value in vars(self._arguments).items()},
            "seconds": self._written_at - self._began,
            "machine": facts,
            "sections": {name: asdict(outcome) for name, outcome in self.outcomes.items()},
        }
        self._place.parent.mkdir(parents=True, exist_ok=True)
        self._place.with_suffix(".json").write_text(json.dumps(record, indent=1, default=str) + "\n")
        text = render(TITLE, facts, self.outcomes, is_rehearsal=self._arguments.rehearse)
        self._place.with_suffix(".md").write_text(text)

    @property
    def is_waiting_for_name(self) -> bool:
        """The file is named after the GPU, which the first section tells."""
        return list(self.outcomes) == ["machine"] and not self._arguments.rehearse

    @property
    def place(self) -> Path | None:
        return self._place


def default_place(facts: dict[str, object], *, is_rehearsal: bool) -> Path:
    if is_rehearsal:
        return ROOT / "build" / "gpu_check_rehearsal.json"
    words = re.findall(r"[a-z0-9]+", str(facts.get("gpu", "gpu")).lower().replace("nvidia", ""))
    return ROOT / "benchmarks" / "results" / f"gpu_check_{'_'.join(words[:2])}_{date.today():%Y%m}.json"


def main() -> None:
    arguments = read_arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that child processes are ended and results are written
    minutes = arguments.minutes or (REHEARSAL_MINUTES if arguments.rehearse else 9.0)
    ends_at = time.time() + 60 * minutes
    results = Results(arguments)
    chosen = [section for section in SECTIONS if section.name in arguments.only or section.name == "machine"]
    with tempfile.TemporaryDirectory() as folder:
        setting = Setting(
            is_rehearsal=arguments.rehearse, is_quick=arguments.quick, ends_at=ends_at, folder=arguments.logs or folder
        )
        Path(setting.folder).mkdir(parents=True, exist_ok=True)
        try:
            for number, section in enumerate(chosen):
                play(section, chosen[number:], replace(setting, **rates(results)), ends_at, results)
        finally:
            results.write()
            print("\n".join(["", *([REHEARSAL_NOTE] if arguments.rehearse else []), *summary(results.outcomes)]))
            if arguments.rehearse:
                print("\n".join(["", "What only a GPU can tell:", *left_to_a_gpu(results.outcomes), ""]))
            print(f"written to {results.place}, and as Markdown beside it")


def play(section: Section, left: list[Section], setting: Setting, ends_at: float, results: Results) -> None:
    """Run a section within its share of the remaining time."""
    share = section.share_s / sum(other.share_s for other in left)
    section_ends_at = time.time() + share * (ends_at - time.time())
    print(f"{section.name}: at most {section_ends_at - time.time():.0f} s", flush=True)
    supervisor = Supervisor(
        section,
        replace(setting, ends_at=section_ends_at),
        lambda outcome: results.update(section.name, outcome, is_done=False),
    )
    outcome = supervisor.run()
    results.update(section.name, outcome, is_done=True)
    print(
        f"{section.name}: {len(outcome.rows)} rows, {len(outcome.failures)} failed, {outcome.seconds:.0f} s", flush=True
    )


def rates(results: Results) -> dict[str, Any]:
    facts = results.facts
    return {name: float(str(facts[name])) for name in ("copy_bytes_per_s", "matmul_per_s") if name in facts}


def read_arguments() -> argparse.Namespace:
    names = [section.name for section in SECTIONS]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="SECTION", help=", ".join(names))
    parser.add_argument("--quick", action="store_true", help="fewer models")
    parser.add_argument("--rehearse", action="store_true", help="tiny shapes, on the CPU, in Triton's interpreter")
    parser.add_argument("--minutes", type=float, help="in which all must be done: 9, of a rehearsal 6")
    parser.add_argument("--out", type=Path, help="the results file; Markdown comes beside it")
    parser.add_argument("--logs", help="a folder to keep what the sections' processes print")
    parser.add_argument("--commit", help="what to note as the commit, where there is no git")
    return parser.parse_args()


if __name__ == "__main__":
    main()
