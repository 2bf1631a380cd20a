"""The process of one section: plays its cases one after the other and writes down each row at once.

python -m forerun_lab.checks.gpu.play SECTION LOG SETTING [PART OF]

With PART and OF it only compiles what these cases need: number PART, PART + OF, ...
"""

import json
import os
import sys
import time
import traceback
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from forerun_lab.checks.gpu.cases import Case, NotThere, Setting

BROKEN_DEVICE = 70  # exit status: after a fault in a kernel, a process can do nothing more with the device


class Log:
    """A line of JSON for everything that happened, on disk at once."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, state: str, case: str, **more: object) -> None:
        line = json.dumps({"state": state, "case": case, "at": time.time(), **more}, default=str)
        with self.path.open("a") as file:
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())

    def begun(self) -> set[str]:
        return {str(record["case"]) for record in self.records() if record["state"] == "began"}

    def records(self) -> Iterator[dict[str, object]]:
        if self.path.exists():
            for line in self.path.read_text().splitlines():
                try:
                    yield json.loads(line)
                except ValueError:  # the end of a process that was cut off
                    continue


def play(cases: list[Case], log: Log, setting: Setting) -> None:
    """Play what has not begun yet; a case that fails is noted, and the next goes on."""
    begun = log.begun()
    for case in cases:
        if case.name in begun:
            continue
        if setting.left_s < 0:
            log.add("left out", case.name)
            continue
        log.add("began", case.name)
        try:
            for row in case.run():
                log.add("row", case.name, row=row)
        except NotThere as missing:
            log.add("skipped", case.name, reason=str(missing))
        except Exception:  # noqa: BLE001 (whatever it is, the others are still worth having)
            log.add("failed", case.name, traceback=traceback.format_exc())
            if is_device_broken(setting):
                sys.exit(BROKEN_DEVICE)
        log.add("ended", case.name)


def is_device_broken(setting: Setting) -> bool:
    if setting.device != "cuda":
        return False
    import torch

    try:
        torch.zeros(1, device="cuda").add_(1)
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    torch.cuda.empty_cache()
    return False


def warm(cases: list[Case], part: int, parts: int, setting: Setting) -> None:
    """Compile for some of the cases. What fails here fails again where it is noted."""
    chosen = [case for case in cases if case.warm is not None][part::parts][: 1 if setting.is_rehearsal else None]
    for case in chosen:
        if setting.left_s < 0:
            break
        try:
            case.warm()  # type: ignore[misc]
        except Exception:  # noqa: BLE001
            traceback.print_exc()
            if is_device_broken(setting):
                sys.exit(BROKEN_DEVICE)


def main() -> None:
    section, path, text, *rest = sys.argv[1:]
    setting = Setting.from_json(text)
    if setting.is_rehearsal:
        os.environ["TRITON_INTERPRET"] = "1"  # before anything imports Triton
    cases = list(import_module(f"forerun_lab.checks.gpu.{section}").cases(setting))
    if rest:
        warm(cases, int(rest[0]), int(rest[1]), setting)
    else:
        play(cases, Log(Path(path)), setting)


if __name__ == "__main__":
    main()
