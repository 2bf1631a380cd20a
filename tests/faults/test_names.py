"""Whatever a user types for a name is found, or refused in one clear line, by the API and by the commands."""

import os
import random
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from forerun import DraftModel, EngineConfig, ForerunError, LayerSkip, NoDrafter, Parallel, SamplingParams, load
from forerun.checkpoints.open import open_source
from forerun.core.errors import ConfigError
from forerun.drafting.layer_skip.set_files import read_sets
from forerun.text.chat_template import read_template
from forerun.wires.endpoint import Address, read_key
from tests.cli.command_lines import Line, fault_of, limited, run_here

FEW = 200
MANY = 5000
PIECES: Final = (
    "", " ", "\0", "\n", "\t", "\x1b[31m", "\ud800", "\udcff", "~", "~/", "~nobody/", "~no_such_user", "/", "//", "..",
    ".", "../", "./", "a", "a/b", "org/model", ":", ":Q4_K_M", "-", "--help", "*", "%s", "{0}", "$HOME", "'", '"', "\\",
    "C:\\", "http://", "https://huggingface.co/", "file:///", "builtin", "builtin-draft", "qwen", "QWEN",
    ".gguf", ".safetensors", "config.json", "é", "💥", "\u202e", "\u2028", "x" * 300, "/" * 5000, "x" * 5000,
    "/dev/null", "/dev/zero", "/proc/self/mem", "/etc/passwd",
)  # fmt: skip
OTHER_KINDS: Final = (5, None, b"abc", b"\xff", ["a"], {}, 1.5, True, object())


@pytest.fixture
def odd_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of what is there and is no model; the current folder is another."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    os.mkfifo(tmp_path / "pipe")
    os.mkfifo(tmp_path / "pipe.gguf")
    with socket.socket(socket.AF_UNIX) as bound:
        monkeypatch.chdir(tmp_path)
        bound.bind("socket")
    monkeypatch.chdir(tmp_path / "here")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "empty.gguf").touch()
    (tmp_path / "mark.gguf").write_bytes(b"GGUF")
    (tmp_path / "text.txt").write_text("hello")
    for folder in ("folder", "folder.gguf", "with_folder/config.json", "with_gguf/a.gguf"):
        (tmp_path / folder).mkdir(parents=True)
    return [str(path) for path in sorted(tmp_path.iterdir())]


def random_names(number: int) -> list[str]:
    rng = random.Random(4)
    return [*PIECES, *("".join(rng.choices(PIECES, k=rng.randint(1, 4))) for _ in range(number))]


def read_header(name: str) -> None:
    source = open_source(name)
    source.spec()
    source.stored_dtype()


READERS: Final[dict[str, Callable[[str], Any]]] = {
    "model": read_header,
    "template": read_template,
    "key file": read_key,
    "skip sets": lambda name: read_sets(Path(name), 4),
    "address": Address.parse,
    "device": lambda name: EngineConfig(device=name),
}


def fault_with(reader: Callable[[str], Any], name: str) -> str | None:
    """What is wrong with what came of a name; None if it was found, or refused in a line that can be printed."""
    try:
        with limited():
            reader(name)
    except ForerunError as error:
        line = str(error)
        is_clear = line.strip() and "\n" not in line and line.encode("utf-8", "surrogateescape")
        return None if is_clear else repr(line)
    except BaseException as error:  # whatever comes out is what is looked for
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            raise
        return f"{type(error).__name__}: {error}"[:200]
    return None


def require_words(reader: Callable[[str], Any], names: list[str]) -> None:
    assert {ascii(name)[:60]: ascii(fault) for name in names if (fault := fault_with(reader, name)) is not None} == {}


@pytest.mark.parametrize("what", READERS)
def test_names_are_found_or_refused_in_words(what: str, odd_files: list[str]) -> None:
    files = [name for name in odd_files if what == "model" or "pipe" not in name]  # others may be read from a pipe
    require_words(READERS[what], [*files, *random_names(FEW)])


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_many_names_of_models_are_found_or_refused_in_words(odd_files: list[str]) -> None:
    require_words(read_header, random_names(MANY))


ENGINES: Final[dict[str, Callable[[Any], Any]]] = {
    "target": lambda name: load(name),
    "draft": lambda name: load("builtin", name),
    "draft of a process": lambda name: load(drafter=Parallel(draft=DraftModel(model=name))),
    "address": lambda name: load(drafter=Parallel(address=name)),
    "skip sets": lambda name: load(drafter=LayerSkip(sets=name)),
    "template": lambda name: load(drafter=NoDrafter(), chat_template=name),
    "dtype": lambda name: load(dtype=name),
}


@pytest.mark.parametrize("what", ENGINES)
def test_engines_refuse_wrong_names_in_words(what: str) -> None:
    def opened(name: Any) -> None:
        ENGINES[what](name).close()

    names: list[Any] = ["", "\0", "\ud800", "~no_such_user", "x" * 300, *OTHER_KINDS]
    if what == "address":
        names.remove(None)  # which is right: a process of this machine
    faults = {ascii(name)[:60]: ascii(fault) for name in names if (fault := fault_with(opened, name)) is not None}
    assert faults == {}


@pytest.mark.parametrize("command", ["run", "inspect", "check", "pull", "models"])
def test_commands_refuse_wrong_names_in_one_line(command: str, odd_files: list[str]) -> None:
    for name in [*odd_files, "", " ", "~no_such_user/x", "a\0b", "\udcff", "x" * 300, "org/model:\n"]:
        line = Line(words=(command, "--", name, *(("hi",) if command == "run" else ())), typed=b"", variables={})
        code, stdout, stderr = run_here(line)
        assert code or command == "pull", name  # which looks whether there is a file
        assert fault_of(line, code, stdout, stderr) is None, f"{name!r}: {stderr[-400:]}"


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: load("builtin", foo=1), "EngineConfig has no setting 'foo': it has target, drafter, dtype"),
        (lambda: SamplingParams(temp=1), "SamplingParams has no setting 'temp': is temperature meant"),  # type: ignore[call-arg]
        (lambda: EngineConfig(max_len=9), "EngineConfig has no setting 'max_len': is max_length meant"),  # type: ignore[call-arg]
        (lambda: NoDrafter(x=1), "NoDrafter has no setting 'x': it has none"),  # type: ignore[call-arg]
        (lambda: SamplingParams(1), "SamplingParams takes settings by their names .*, but 1 has no name"),  # type: ignore[misc]
    ],
)
def test_settings_that_do_not_exist_are_refused_in_words(made: Callable[[], object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        made()
