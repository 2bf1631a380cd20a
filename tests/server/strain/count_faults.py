"""What strangers, crowds and faults do to a server: every part against a process of its own, in numbers and as JSON.

scripts/test_server                                  everything at its full counts: an hour or two
scripts/test_server malformed --malformed 5000       one part, and fewer requests
scripts/test_server --record found.json              the figures as JSON as well

Exits with 1 where a part found a fault.
"""

import argparse
import json
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests.server.strain import crowd, description, endurance, leaving, malformed, raw_http
from tests.server.strain.process import serving
from tests.server.strain.wire import Address, Outcome

MAX_SHOWN: Final = 10


def on_server(strain: Callable[[Address], Outcome]) -> Outcome:
    """A part on a server of its own, which must live on and say nothing of its inside in its log."""
    with serving("--fixed-widths") as server:
        outcome = strain(server.address)
        outcome.require(server.is_alive(), "the server ended")
        outcome.require("Traceback" not in server.said(), server.said()[-3000:])
    return outcome


def parts(counts: argparse.Namespace) -> dict[str, Callable[[], Outcome]]:
    """All parts by name, each with its count."""
    seed = counts.seed
    return {
        "description": lambda: description.run(counts.examples, seed=seed),
        "malformed": lambda: on_server(lambda address: malformed.run(address, counts.malformed, seed=seed)),
        "raw_http": lambda: on_server(lambda address: raw_http.run(address, counts.raw, seed=seed)),
        "leaving": lambda: leaving.run(counts.disconnects, seed=seed),
        "crowd": lambda: crowd.run(counts.overload_s, seed=seed),
        "endurance": lambda: endurance.run(counts.requests, kill_every_s=counts.kill_every_s, seed=seed),
    }


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("part", nargs="*", help="description, malformed, raw_http, leaving, crowd, endurance [all]")
    made.add_argument("--examples", type=int, default=2000, help="of schemathesis, for each operation [%(default)s]")
    made.add_argument("--malformed", type=int, default=200_000, help="requests that are refused [%(default)s]")
    made.add_argument("--raw", type=int, default=20_000, help="connections with bytes that are no HTTP [%(default)s]")
    made.add_argument("--disconnects", type=int, default=10_000, help="clients that hang up [%(default)s]")
    made.add_argument("--overload-s", type=float, default=300.0, help="seconds of ten times too much [%(default)s]")
    made.add_argument("--requests", type=int, default=50_000, help="of the soak [%(default)s]")
    made.add_argument("--kill-every-s", type=float, default=60.0, help="between kills of the drafter [%(default)s]")
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--record", type=Path, help="a file for the figures")
    return made


def main() -> int:
    """Print a line for every figure; 1 where something was wrong."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # ends the servers that were started
    counts = parser().parse_args()
    known = parts(counts)
    unknown = set(counts.part) - set(known)
    if unknown:
        parser().error(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    record: dict[str, dict[str, object]] = {}
    for name in counts.part or known:
        began = time.monotonic()
        outcome = known[name]()
        outcome.figures["whole part s"] = time.monotonic() - began
        record[name] = {"figures": outcome.figures, "faults": outcome.faults}
        for figure, value in outcome.figures.items():
            print(f"{name:12} {figure:34} {value:12.6g}", flush=True)
        for fault in outcome.faults[:MAX_SHOWN]:
            print(f"{name:12} FAULT {fault}", flush=True)
        if counts.record is not None:
            counts.record.write_text(json.dumps(record, indent=1))
    num_faults = sum(len(outcome["faults"]) for outcome in record.values())  # type: ignore[arg-type, misc]
    print(f"{len(record)} parts, {num_faults} faults")
    return 1 if num_faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
