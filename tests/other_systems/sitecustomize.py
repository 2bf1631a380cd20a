"""Makes the program see another system: SYSTEM_OF_FORERUNS_TESTS=windows PYTHONPATH=tests/other_systems pytest ...

Python imports this file at its start, in every process that inherits these two variables. The program's modules and
the tests' then see the standard library as that system has it: names and modules that typeshed, which mypy brings
along, does not list for it are missing, and `sys.platform` is its own. Other packages are Linux's, so they still see
Linux. For everybody there is no /proc, no /sys and no abstract socket.

What only the system itself can show: its own calls, file systems, terminals, and other packages there.
"""

import ast
import builtins
import errno
import os
import re
import select
import selectors
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

PLATFORMS = {"macos": "darwin", "windows": "win32"}
SYSTEM: str = globals().get("SYSTEM") or os.environ["SYSTEM_OF_FORERUNS_TESTS"]
PLATFORM = PLATFORMS[SYSTEM]
SEEING = re.compile(r"(forerun|tests)(\.|$)")  # the modules that see the other system
VIEWED = (
    *("asyncio", "ctypes", "errno", "fcntl", "grp", "mmap", "multiprocessing", "os", "pty", "pwd", "readline"),
    *("resource", "select", "selectors", "signal", "socket", "subprocess", "sys", "syslog", "termios", "time", "tty"),
)
LINUX_FOLDERS = re.compile(r"/(proc|sys)(/|$)")
SETTINGS_OF_LINUX = ("SC_LEVEL", "SC_AVPHYS")  # beginnings of names that macOS does not know


def names_in(stub: ast.Module, platform: str) -> set[str]:
    """The names that a module has on a system."""
    known = {"sys": SimpleNamespace(platform=platform, version_info=sys.version_info), "TYPE_CHECKING": True}

    def found(body: list[ast.stmt]) -> Iterator[str]:
        for node in body:
            match node:
                case ast.If():
                    is_so = eval(compile(ast.Expression(node.test), "typeshed", "eval"), known)  # noqa: S307
                    yield from found(node.body if is_so else node.orelse)
                case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.AnnAssign(target=ast.Name(id=name)):
                    yield name
                case ast.ImportFrom() if node.module == "sys":
                    pass
                case ast.ImportFrom(names=names):
                    yield from (each.asname for each in names if each.asname)
                case ast.Assign(targets=[ast.Name(id=name)]):
                    yield name

    return set(found(stub.body))


@cache
def missing_names(module: str) -> frozenset[str] | None:
    """What a module of Linux lacks on the other system; None: that has no such module."""
    import importlib.util

    mypy = importlib.util.find_spec("mypy")
    assert mypy is not None, "mypy is not installed: run scripts/setup"
    assert mypy.origin is not None
    stubs = Path(mypy.origin).parent / "typeshed/stdlib"
    path = next(path for path in (stubs / f"{module}.pyi", stubs / module / "__init__.pyi") if path.exists())
    stub = ast.parse(path.read_text(encoding="utf-8"))
    there = names_in(stub, PLATFORM)
    return frozenset(names_in(stub, "linux") - there) if there else None


class View(ModuleType):
    """A module as the other system has it."""

    def __init__(self, real: ModuleType, missing: frozenset[str], changed: Mapping[str, Any]) -> None:
        for name, value in {"__name__": real.__name__, "_real": real, "_missing": missing, "_changed": changed}.items():
            super().__setattr__(name, value)

    @property
    def __dict__(self) -> dict[str, Any]:  # type: ignore[override]  # tests that patch a module look there
        return vars(self._real)

    def __getattr__(self, name: str) -> Any:
        if name in self._missing:
            raise AttributeError(f"module {self.__name__!r} has no {name!r} on {SYSTEM}", name=name, obj=self)
        return self._changed[name] if name in self._changed else getattr(self._real, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._real, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._real, name)

    def __dir__(self) -> list[str]:
        return sorted(set(dir(self._real)) - self._missing)


def is_linux_only(path: object) -> bool:
    """Whether no other system has this path. psutil, with which tests look at processes, may read Linux's."""
    if not isinstance(path, str | bytes | os.PathLike) or not LINUX_FOLDERS.match(os.fsdecode(path)):
        return False
    frame = sys._getframe()
    while frame.f_back is not None and not frame.f_globals.get("__name__", "").startswith("psutil"):
        frame = frame.f_back
    return frame.f_back is None


def refuse(event: str, arguments: tuple[Any, ...]) -> None:
    """What Python is about to do, whoever asks for it."""
    if event in ("open", "os.listdir", "os.scandir") and is_linux_only(arguments[0]):
        raise FileNotFoundError(errno.ENOENT, f"{SYSTEM} has no such file", os.fsdecode(arguments[0]))
    if event in ("socket.bind", "socket.connect") and arguments[1][:1] in ("\0", b"\0"):
        raise OSError(errno.EINVAL, f"{SYSTEM} has no abstract sockets")


def masked_stat(path: Any, *arguments: Any, **named: Any) -> os.stat_result:
    if is_linux_only(path):
        raise FileNotFoundError(errno.ENOENT, f"{SYSTEM} has no such file", os.fsdecode(path))
    return real_stat(path, *arguments, **named)


def fork_alone() -> int:
    """Elsewhere a child of a process with threads may hang in its first call of the system."""
    num_threads = len(real_listdir("/proc/self/task"))
    assert num_threads == 1, f"the process forks with {num_threads} threads"
    return os.fork()


def set_limit(kind: int, limits: tuple[int, int]) -> None:
    """macOS has no limit of a process's memory."""
    import resource

    if kind == resource.RLIMIT_AS:
        raise ValueError("current limit exceeds maximum limit")
    resource.setrlimit(kind, limits)


class SeeingPopen(subprocess.Popen[Any]):
    """A child that sees the other system too, if it is Python, even without environment variables."""

    def __init__(self, args: Any, *rest: Any, **named: Any) -> None:
        if SYSTEM == "windows":
            assert not named.get("pass_fds"), "pass_fds not supported on Windows."
            assert named.get("preexec_fn") is None, "preexec_fn is not supported on Windows platforms"
            env = named.get("env")
            assert env is None or "SYSTEMROOT" in env, "Windows' Python does not start without SYSTEMROOT"
        if "-I" in args:
            place = args.index("-c") + 1
            seeing = f"import runpy; runpy.run_path({__file__!r}, dict(SYSTEM={SYSTEM!r})); "
            args = [*args[:place], seeing + args[place], *args[place + 1 :]]
        super().__init__(args, *rest, **named)


class SocketSelector(selectors.SelectSelector):
    """Windows waits for sockets alone, not for pipes."""

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        require_socket(fileobj)
        return super().register(fileobj, events, data)


def select_sockets(*lists: Any) -> Any:
    for each in lists[:3]:
        for end in each:
            require_socket(end)
    return select.select(*lists)


def require_socket(end: Any) -> None:
    descriptor = end if isinstance(end, int) else end.fileno()
    if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
        raise OSError(10038, "An operation was attempted on something that is not a socket")


def changes() -> dict[str, dict[str, Any]]:
    """What modules have in another way."""
    common: dict[str, dict[str, Any]] = {"sys": {"platform": PLATFORM}, "subprocess": {"Popen": SeeingPopen}}
    if SYSTEM == "macos":
        settings = {name: key for name, key in os.sysconf_names.items() if not name.startswith(SETTINGS_OF_LINUX)}
        return common | {"os": {"fork": fork_alone, "sysconf_names": settings}, "resource": {"setrlimit": set_limit}}
    return common | {
        "os": {"name": "nt"},
        "select": {"select": select_sockets},
        "selectors": {"DefaultSelector": SocketSelector, "SelectSelector": SocketSelector},
    }


def view_of(module: ModuleType) -> ModuleType:
    name = module.__name__
    if name not in views:
        missing = missing_names(name)
        if missing is None:
            raise ModuleNotFoundError(f"{SYSTEM} has no module {name!r}", name=name)
        views[name] = View(module, missing, changed.get(name, {}))
    return views[name]


def seeing_import(name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> ModuleType:
    module = real_import(name, globals, locals, fromlist, level)
    if level == 0 and module.__name__ in VIEWED and SEEING.match((globals or {}).get("__name__", "")):
        return view_of(module)
    return module


real_import = builtins.__import__
real_stat = os.stat
real_listdir = os.listdir
views: dict[str, ModuleType] = {}
changed = changes()


def mask() -> None:
    """Take Linux away from this process."""
    for kinds in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks):
        kinds.add(masked_stat)
    os.stat = masked_stat
    if SYSTEM == "windows":
        os.environ["SYSTEMROOT"] = "C:\\Windows"
    builtins.__import__ = seeing_import
    sys.addaudithook(refuse)


mask()
