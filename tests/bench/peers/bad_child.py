"""A peer's process that behaves as its mode says: well, or not at all."""

import os
import subprocess
import sys
import time

from forerun_lab.bench.peers.messages import PeerError, PeerPlan, PeerRequest
from forerun_lab.bench.peers.process import Arrivals, serve
from forerun_lab.bench.records.answers import Turn


class Puppet:
    """Answers with the prompt reversed, in one round of all but the last and one of the last."""

    def __init__(self, plan: PeerPlan) -> None:
        self.mode = plan.mode
        if self.mode == "refuses to open":
            raise PeerError("I will not")
        if self.mode == "dies early":
            raise RuntimeError("no such luck")

    def write(self, request: PeerRequest) -> Turn:
        arrivals = Arrivals()
        getattr(self, self.mode.replace(" ", "_"), lambda: None)()
        *most, last = reversed(request.prompt_ids)
        arrivals.add(most)
        arrivals.add([last])
        return arrivals.turn(len(request.prompt_ids))

    def prints(self) -> None:
        sys.stdout.write("hello from Python\n")
        sys.stdout.flush()
        os.write(1, b"hello from C\n")
        subprocess.run([sys.executable, "-c", "print('hello from a child')"], check=True)

    def dies(self) -> None:
        sys.stderr.write("the disk is on fire\n")
        sys.stderr.flush()
        os.abort()

    def raises(self) -> None:
        raise RuntimeError("out of luck")

    def refuses(self) -> None:
        self.mode = "is good again"
        raise PeerError("not now")

    def hangs(self) -> None:
        helper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        sys.stderr.write(f"helper {helper.pid}\n")
        sys.stderr.flush()
        time.sleep(600)

    def forget(self) -> None:
        pass

    def close(self) -> None:
        if self.mode == "stays":
            time.sleep(600)


if __name__ == "__main__":
    serve(Puppet)
