"""A description of the machine, and its load from other programs."""

import os
import platform
import shutil
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import perf_counter, thread_time
from typing import Final

import torch

import forerun
from forerun.core.affinity import usable_cores
from forerun.core.memory import memory_bytes
from forerun.core.processor import cpu_model

Facts = dict[str, str | int | float]
PEERS: Final = ("transformers", "vllm", "sglang", "ctranslate2")
CACHES: Final = Path("/sys/devices/system/cpu/cpu0/cache")
USUAL_CACHE_BYTES: Final = 64 << 20  # if the system does not report it: as on large desktops
UNITS: Final = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
ASKING_S: Final = 10.0
SPINNING_S: Final = 0.2


def describe_machine() -> Facts:
    """Hardware, versions and commit; unknown facts are left out.

    It holds no host name, no user and no path, so that it can be published.
    """
    facts: Facts = {
        "cpu": cpu_model(),
        "cores": usable_cores(),
        "isa": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "last_level_cache_bytes": last_level_cache_bytes(torch.device("cpu")),
        **memory(),
        **gpu(),
        "os": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "forerun": forerun.__version__,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        **load_average(),
        **peers(),
    }
    commit = commit_of(Path(forerun.__file__).parent)
    return facts if commit is None else facts | {"commit": commit}


def foreign_load() -> float:
    """The share of a spinning thread's time, in [0, 1], that other programs took.

    0.0 on an idle machine. It covers only the core of the thread, and may miss time that a hypervisor takes.
    """
    began = perf_counter()
    worked = thread_time()
    while (wall := perf_counter() - began) < SPINNING_S:
        pass
    return min(1.0, max(0.0, 1.0 - (thread_time() - worked) / wall))


def last_level_cache_bytes(device: torch.device) -> int:
    """The size of the last-level cache; smaller buffers may never be read from memory."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).L2_cache_size)
    sizes = [path.read_text().strip() for path in CACHES.glob("index*/size")]
    return max((int(size[:-1]) * UNITS[size[-1]] for size in sizes if size[-1] in UNITS), default=USUAL_CACHE_BYTES)


def memory() -> Facts:
    total = memory_bytes()
    return {} if total is None else {"memory_bytes": total}


def gpu() -> Facts:
    """The first GPU that torch sees; empty without one."""
    if not torch.cuda.is_available():
        return {}
    properties = torch.cuda.get_device_properties(0)
    facts: Facts = {
        "gpu": properties.name,
        "gpus": torch.cuda.device_count(),
        "gpu_memory_bytes": properties.total_memory,
        "cuda": torch.version.cuda or "",
    }
    fields = "driver_version,clocks.sm,clocks.max.sm"
    said = answer("nvidia-smi", f"--id=GPU-{properties.uuid}", f"--query-gpu={fields}", "--format=csv,noheader")
    if said is not None and said.count(",") == 2:
        driver, clock, max_clock = (part.strip() for part in said.split(","))
        facts |= {"gpu_driver": driver, "gpu_clock": clock, "gpu_max_clock": max_clock}
    return facts


def load_average() -> Facts:
    """The mean number of runnable processes in the last minute, our own included."""
    return {"load_average": round(os.getloadavg()[0], 2)} if hasattr(os, "getloadavg") else {}


def peers() -> Facts:
    """Versions of the installed peers; none of them is imported."""
    found: Facts = {}
    for name in PEERS:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def commit_of(folder: Path) -> str | None:
    """The commit of a folder in a git repository, with "-dirty" if files differ from it; None elsewhere.

    A package installed inside another project's checkout is not tracked there, so it has no commit.
    """
    git = ("git", "--no-optional-locks", "-C", str(folder))
    if answer(*git, "ls-files", "--error-unmatch", "__init__.py") is None:
        return None
    return answer(*git, "describe", "--always", "--dirty", "--exclude=*")


def answer(program: str, *arguments: str) -> str | None:
    """The output of a program; None if it is missing, fails or takes too long."""
    if shutil.which(program) is None:
        return None
    try:
        finished = subprocess.run((program, *arguments), capture_output=True, text=True, check=False, timeout=ASKING_S)
    except subprocess.TimeoutExpired:
        return None
    return finished.stdout.strip() if finished.returncode == 0 else None
