"""How many cores a process can keep busy: quotas of control groups, read from trees of files like the system's."""

from math import inf
from pathlib import Path

import pytest

from forerun.core import affinity
from forerun.core.affinity import cpu_quota, usable_cores

TOP = "sys/fs/cgroup"
V2_MOUNT = "41 31 0:38 {root} {point} rw,relatime shared:4 - cgroup2 cgroup2 rw,nsdelegate"
OTHERS = (
    "23 1 254:0 / / rw,relatime - ext4 /dev/vda rw",
    "34 31 0:31 / /sys/fs/cgroup/cpuset rw,relatime - cgroup cgroup rw,cpuset",
    "40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd",
)


def machine(
    root: Path, *, groups: str, mount: str, files: dict[str, str], mount_root: str = "/", point: str = f"/{TOP}"
) -> Path:
    """A tree with what a process sees of itself, and files of control groups."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(groups)
    line = mount.format(root=mount_root, point=point)
    (root / "proc/self/mountinfo").write_text("\n".join([*OTHERS, line, ""]))
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text + "\n")
    return root


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({f"{TOP}/docker/abc/cpu.max": "150000 100000"}, 1.5),
        ({f"{TOP}/docker/abc/cpu.max": "max 100000"}, inf),
        ({f"{TOP}/docker/abc/cpu.max": "max 100000", f"{TOP}/docker/cpu.max": "50000 100000"}, 0.5),
        ({f"{TOP}/docker/abc/cpu.max": "400000 100000", f"{TOP}/docker/cpu.max": "600000 100000"}, 4.0),
        ({f"{TOP}/docker/abc/cpu.max": "400000 100000", f"{TOP}/cpu.max": "300000 100000"}, 3.0),
        ({f"{TOP}/docker/other/cpu.max": "100000 100000"}, inf),
        ({f"{TOP}/docker/abc/cpu.max": "garbage"}, inf),
        ({f"{TOP}/docker/abc/cpu.max": "100000 0"}, inf),
        ({}, inf),
    ],
)
def test_version_two_grants_the_least_of_a_group_and_its_parents(
    tmp_path: Path, files: dict[str, str], expected: float
) -> None:
    assert cpu_quota(machine(tmp_path, groups="0::/docker/abc\n", mount=V2_MOUNT, files=files)) == expected


def test_a_system_without_such_files_has_no_quota(tmp_path: Path) -> None:
    assert cpu_quota(tmp_path) == inf


@pytest.mark.parametrize(
    ("cores", "quota", "expected"),
    [(64, 1.0, 1), (64, 0.2, 1), (64, 1.4, 1), (64, 1.5, 2), (64, 2.9, 3), (2, 4.0, 2), (2, inf, 2), (1, 1.0, 1)],
)
def test_the_cores_that_can_be_kept_busy_are_the_least_of_both(
    monkeypatch: pytest.MonkeyPatch, cores: int, quota: float, expected: int
) -> None:
    monkeypatch.setattr(affinity, "own_cores", lambda: list(range(cores)))
    monkeypatch.setattr(affinity, "cpu_quota", lambda: quota)
    assert usable_cores() == expected
