"""Random cases are the same in every run and never too slow for a busy machine; tiny checkpoints for whole engines."""

import atexit
import gc
import os
import signal
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp

import pytest
from hypothesis import HealthCheck, settings

from tests.text.tiny_tokenizers import write_byte_level, write_llama

settings.register_profile(
    "default", derandomize=True, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("default")


def pytest_configure(config: pytest.Config) -> None:
    """Without a GPU Triton's kernels run in its interpreter; whether they do is settled when they are imported.

    No test finds or fetches models of the person who runs it: all caches are empty ones, and the hub is not asked.
    """
    keep_caches_apart()
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as of what a script begins with &; tests send it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    marks = config.option.markexpr
    if "gpu" not in marks or "not gpu" in marks:
        assert "triton" not in sys.modules, "a conftest imports Triton, perhaps by transformers: let a fixture do it"
        os.environ["TRITON_INTERPRET"] = "1"


def pytest_report_header() -> str:
    """Which instruction sets of the CPU's kernels are not tested, in one line."""
    from tests.backends.cpu.conftest import TIERS, tiers_here

    missing = ", ".join(sorted(set(TIERS) - set(tiers_here())))
    return f"kernels that are not built, or not for this machine: {missing} (scripts/test_slow builds all)"


@pytest.hookimpl(trylast=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Cases that a run deselects by their marks are not made at all, but for one of each test: they are the most."""
    config = metafunc.config
    terms = config.option.markexpr.split(" and ")
    unwanted = {term.removeprefix("not ") for term in terms if term.startswith("not ")}
    if "or" in config.option.markexpr.split() or any("::" in argument for argument in config.args):
        return  # it is less plain which ones are deselected, or one may be asked for by its name
    of_all = {mark.name for mark in metafunc.definition.iter_markers()}
    calls = metafunc._calls
    wanted = [call for call in calls if unwanted.isdisjoint(of_all.union(mark.name for mark in call.marks))]
    calls[:] = wanted or calls[:1]


def pytest_collection(session: pytest.Session) -> None:
    """Of the thousands of tests that are collected nothing is garbage, so nobody looks for any among them."""
    gc.disable()


def pytest_collection_finish(session: pytest.Session) -> None:
    gc.freeze()
    gc.enable()
    atexit.register(gc.unfreeze)  # else nanobind, which Triton uses, complains of leaks


def keep_caches_apart() -> None:
    """Before huggingface_hub is imported, which reads these variables once."""
    if "CACHE_OF_FORERUNS_TESTS" not in os.environ:  # else it is a worker of xdist, which has its parent's
        own = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        os.environ.setdefault("MPLCONFIGDIR", str(own / "matplotlib"))  # finding all fonts anew takes seconds
        cache = mkdtemp(prefix="forerun-tests-")
        atexit.register(rmtree, cache, ignore_errors=True)
        os.environ |= {"CACHE_OF_FORERUNS_TESTS": cache, "XDG_CACHE_HOME": cache, "HF_HUB_OFFLINE": "1"}
    for name in ("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "FORERUN_CACHE"):
        os.environ.pop(name, None)


@pytest.fixture(scope="session", autouse=True)
def errors_of_drafters() -> Iterator[None]:
    """An error in a drafter fails the test. In use it only costs the drafting of a text, and nobody would see it."""
    from forerun.decoding import drafters  # brings torch along

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drafters, "FAULTS", ())
        yield


@pytest.fixture(scope="session", autouse=True)
def passes_timed_twice() -> Iterator[None]:
    """How long a pass takes decides no text, so engines do not repeat passes until their times settle."""
    from forerun.model import pass_times  # brings torch along

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pass_times, "SETTLED_S", 1e-6)
        patch.setattr(pass_times, "MOST_REPEATS", 2)
        yield


@pytest.fixture
def guarded_drafters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors in drafters are treated as in use."""
    from forerun.decoding import drafters

    monkeypatch.setattr(drafters, "FAULTS", (Exception,))


SIZES = {"vocab_size": 320, "max_position_embeddings": 512}


@pytest.fixture
def random_turns() -> Iterator[None]:
    """Who drafts is drawn at random, in drafters that are made in this test."""
    from tests.random_turns import turns_at_random  # brings torch along

    with turns_at_random():
        yield


@pytest.fixture(scope="session")
def emulation() -> None:
    """Triton's interpreter wastes no time."""
    if find_spec("triton") is not None:
        from tests.backends.gpu.emulation import spare_idle_work  # brings Triton along

        spare_idle_work()


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest, emulation: None) -> str:
    """Where Triton's kernels run: in the interpreter, and on a GPU where one is asked for by its mark."""
    return str(request.param)


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Qwen2-like chat model."""
    from tests.golden.families import qwen2  # brings transformers along

    folder = tmp_path_factory.mktemp("target")
    qwen2(**SIZES).save(folder)
    return str(write_byte_level(folder))


@pytest.fixture(scope="session")
def draft(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A shallower model with the target's tokens."""
    from tests.golden.families import qwen2

    folder = tmp_path_factory.mktemp("draft")
    qwen2(**SIZES, num_hidden_layers=1).save(folder)
    return str(write_byte_level(folder))


@pytest.fixture(scope="session")
def plain(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Llama-like model with other tokens and no chat template."""
    from tests.golden.families import llama

    folder = tmp_path_factory.mktemp("plain")
    llama(**SIZES).save(folder)
    return str(write_llama(folder))
