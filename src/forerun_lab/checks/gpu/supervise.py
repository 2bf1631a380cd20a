"""Runs sections in processes of their own, so that a fault or an endless wait in a kernel costs one case only."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from forerun_lab.checks.gpu.cases import ROOT, Outcome, Section, Setting
from forerun_lab.checks.gpu.play import Log

POLL_S = 0.2
MAX_PROCESSES = 6  # of one section, each begun after the one before it broke
GRACE_S = 5.0  # for the case that is under way when the time is over
TAIL_LINES = 25
REHEARSAL_PATIENCE = 10  # times as long on a processor that others use as well


class Supervisor:
    """One section: its warm-up, its cases, what to do when a process breaks.

    `on_progress` is told the outcome so far, now and then.
    """

    def __init__(self, section: Section, setting: Setting, on_progress: Callable[[Outcome], None]) -> None:
        self._section = section
        self._setting = setting
        self._on_progress = on_progress
        self._log = Log(Path(setting.folder) / f"{section.name}.jsonl")
        self._output = Path(setting.folder) / f"{section.name}.log"
        self._num_seen = -1

    def run(self) -> Outcome:
        began = time.time()
        if self._section.num_warmers:
            self._warm()
        for _ in range(MAX_PROCESSES):
            if self._play():
                break
        outcome = self.outcome()
        outcome.seconds = time.time() - began
        return outcome

    def _start(self, setting: Setting, *rest: int) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", "forerun_lab.checks.gpu.play", self._section.name, str(self._log.path)]
        with self._output.open("ab") as output:
            return subprocess.Popen(
                [*command, setting.to_json(), *map(str, rest)],
                stdout=output, stderr=output, stdin=subprocess.DEVNULL, cwd=ROOT,
                process_group=0,  # with what it starts itself, it can be ended as one
            )  # fmt: skip

    def _warm(self) -> None:
        """Compile in several processes; those not ready in time are ended."""
        setting = self._setting
        section = self._section
        ends_at = time.time() + section.warm_share * setting.left_s
        number = 1 if setting.is_rehearsal else min(section.num_warmers, max(1, (os.cpu_count() or 1) - 2))
        processes = [self._start(replace(setting, ends_at=ends_at), part, number) for part in range(number)]
        try:
            while time.time() < ends_at + GRACE_S and any(process.poll() is None for process in processes):
                time.sleep(POLL_S)
        finally:
            for process in processes:
                end(process)

    def _play(self) -> bool:
        """Run one process over the cases that have not begun; True if none is left for another."""
        process = self._start(self._setting)
        try:
            while process.poll() is None:
                self._report()
                late = self._late_case()
                if late is not None:
                    end(process)
                    if late[0] or not self._log.begun():  # else it had done what there was time for
                        case = late[0] or "start"
                        why = f"{late[1]}: the process was ended"
                        self._log.add("failed", case, traceback=f"{self._tail()}\n{why}")
                    return time.time() > self._setting.ends_at
                time.sleep(POLL_S)
        finally:
            end(process)
        self._report()
        if process.returncode == 0:
            return True
        open_case = self._open_case()
        if open_case is not None:
            what = f"the process ended with status {process.returncode}"
            self._log.add("failed", open_case[0], traceback=f"{self._tail()}\n{what}")
        elif not self._log.begun():  # not one case: it will not be otherwise the next time
            self._log.add("failed", "all", traceback=self._tail())
            return True
        return time.time() > self._setting.ends_at

    def _open_case(self) -> tuple[str, float] | None:
        """The case under way and when it began."""
        case = None
        for record in self._log.records():
            if record["state"] == "began":
                case = str(record["case"]), float(str(record["at"]))
            elif record["state"] in ("ended", "failed"):
                case = None
        return case

    def _late_case(self) -> tuple[str, str] | None:
        case = self._open_case()
        now = time.time()
        if now > self._setting.ends_at + GRACE_S:
            return case[0] if case else "", "the section's time was over"
        limit_s = self._section.case_limit_s * (REHEARSAL_PATIENCE if self._setting.is_rehearsal else 1)
        if case is not None and now - case[1] > limit_s:
            return case[0], f"not ready after {limit_s:.0f} s"
        return None

    def _report(self) -> None:
        """Tell the outcome so far when there is more of it."""
        size = self._log.path.stat().st_size if self._log.path.exists() else 0
        if size != self._num_seen:
            self._num_seen = size
            self._on_progress(self.outcome())

    def _tail(self) -> str:
        lines = self._output.read_text(errors="replace").splitlines() if self._output.exists() else []
        return "\n".join(lines[-TAIL_LINES:])

    def outcome(self) -> Outcome:
        """What the log says so far."""
        outcome = Outcome()
        for record in self._log.records():
            case = str(record["case"])
            match record["state"]:
                case "row":
                    outcome.rows.append({"case": case, **record["row"]})  # type: ignore[dict-item]
                case "failed":
                    outcome.failures.append({"case": case, "traceback": record["traceback"]})
                case "skipped":
                    outcome.skipped.append({"case": case, "reason": record["reason"]})
                case "left out":
                    outcome.left_out.append(case)
        return outcome


def end(process: "subprocess.Popen[bytes]") -> None:
    """End a process with all that it started."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
