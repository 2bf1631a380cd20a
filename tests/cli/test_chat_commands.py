"""What the commands of a chat do to its conversation, its settings and its files."""

import io
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from forerun import Engine, EngineConfig, NoDrafter, SamplingParams
from forerun.cli.chat.chat import chat, talk
from forerun.cli.chat.files import transcript_of
from forerun.cli.chat.reader import TypedLines
from forerun.cli.chat.session import ChatOptions, Session
from forerun.cli.chat.slash_commands import COMMANDS, completions
from forerun.cli.chat.transcript import MAX_BYTES, Transcript
from forerun.cli.failures import flags_of
from forerun.cli.interrupt import StopOnInterrupt
from forerun.cli.output_options import OutputOptions
from forerun.core.config import seed_of_text
from forerun.core.drafter_config import BUILTIN_TARGET
from forerun.core.kept_files import KeptFiles
from tests.cli.conftest import Run

Chat = Callable[..., tuple[Session, str, str]]
THREE = SamplingParams(max_new_tokens=3, ignore_eos=True)


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    config = EngineConfig(target=BUILTIN_TARGET, drafter=NoDrafter(), num_threads=1, chat_template="chatml")
    with Engine(config) as engine:
        yield engine


@pytest.fixture
def converse(engine: Engine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Chat:
    """Type lines into a chat: its session afterwards, and what was shown on stdout and stderr."""

    def call(
        *typed: str, params: SamplingParams = THREE, session: Session | None = None, options: ChatOptions | None = None
    ) -> tuple[Session, str, str]:
        monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in typed)))
        with StopOnInterrupt() as interrupt:
            lines = TypedLines(interrupt)
            if session is None:
                session = Session(
                    engine,
                    params,
                    lines,
                    options=options or ChatOptions(),
                    form=OutputOptions(),
                    files=KeptFiles(MAX_BYTES),
                )
            session.is_over = False
            talk(session, flags_of(chat))
        return session, *capsys.readouterr()

    return call


def said(session: Session) -> list[str]:
    return [turn.said for turn in session.conversation.turns]


def test_undo_takes_back_the_last_question_with_its_answer(converse: Chat) -> None:
    session, _, told = converse("one", "two", "/undo")
    assert said(session) == ["one"]
    assert "removed: two" in told
    assert "there is no turn to remove" in converse("/undo")[2]


def test_a_greedy_answer_is_not_written_again_unless_something_has_changed(converse: Chat) -> None:
    session, shown, told = converse("one", "/regenerate")
    assert len(shown.splitlines()) == 1
    assert "the same, as decoding is greedy" in told
    _, shown, told = converse("/system Be brief.", "/regen", session=session)
    assert len(shown.splitlines()) == 1
    assert said(session) == ["one"]
    assert "the same, as decoding is greedy" in converse("/regen", session=session)[2]
    assert "nothing was answered yet" in converse("/regenerate")[2]


def test_a_sampled_answer_is_written_again_with_a_seed_that_follows(engine: Engine, converse: Chat) -> None:
    def sampled(seed: int) -> SamplingParams:
        return SamplingParams(max_new_tokens=8, temperature=1.0, seed=seed, ignore_eos=True)

    session, shown, _ = converse("one", "/regenerate", "/regenerate", params=sampled(5))
    expected = [
        engine.generate([{"role": "user", "content": "one"}], sampled(seed_of_text(5, number))).text
        for number in range(3)
    ]
    assert "".join(shown.split("\n")) == "".join("".join(expected).split("\n"))
    assert len(set(expected)) == 3
    assert [turn.answer for turn in session.conversation.turns] == expected[2:]
    fresh = converse("one", "/regenerate", "/regenerate", params=SamplingParams(max_new_tokens=8, temperature=1.0))
    assert len(fresh[0].conversation.turns) == 1


@pytest.mark.parametrize("options", [ChatOptions(), ChatOptions(system_prompt="Be brief.")])
def test_an_answer_goes_on_where_it_was_cut(engine: Engine, converse: Chat, options: ChatOptions) -> None:
    session, shown, told = converse("/continue", "one", "/continue", options=options)
    whole, _, _ = converse("/set max_new_tokens 6", "one", options=options)
    assert shown.replace("\n", "") == whole.conversation.turns[0].answer.replace("\n", "")
    assert session.conversation.turns == whole.conversation.turns
    assert told.count("there is no answer to continue") == 1
    assert "there is no answer" in converse("/shift 1", "/continue", session=session)[2]


def test_the_system_prompt_can_be_shown_changed_and_removed(engine: Engine, converse: Chat) -> None:
    session, _, told = converse("/system", "one", "/system Be brief.", "/system")
    assert told.count("there is no system prompt") == 1
    assert told.count("the system prompt is: Be brief.") == 2
    assert session.conversation.prompt("two")[0] == {"role": "system", "content": "Be brief."}
    assert session.conversation.prompt("two")[1] == {"role": "user", "content": "one"}
    converse('/system ""', session=session)
    assert session.conversation.prompt("two")[0] == {"role": "user", "content": "one"}


def test_settings_are_set_by_the_names_of_their_flags(converse: Chat) -> None:
    typed = ("temperature 0.5", "top-p 0.9", "--top_k 7", "-n 12", "seed 4", "stop User:", "logit_bias 4=1 5=-2.5",
             "ignore-eos no")  # fmt: skip
    session, _, told = converse(*(f"/set {line}" for line in typed))
    assert session.settings.params == SamplingParams(
        temperature=0.5, top_p=0.9, top_k=7, max_new_tokens=12, seed=4, stop=("User:",), logit_bias={4: 1.0, 5: -2.5}
    )
    assert "error" not in told
    assert "temperature is 0.5\n" in told
    assert "-n is 12\n" in told
    _, _, told = converse("/set", *(f"/set {line.split()[0]} default" for line in typed), session=session)
    assert session.settings.params == THREE
    assert "temperature         0.5\n" in told
    assert "logit_bias          4=1 5=-2.5\n" in told


@pytest.mark.parametrize(
    ("typed", "error"),
    [
        ("temperature x", "--temperature 'x' must be a number"),
        ("temperature -1", "--temperature -1.0 must be 0 (greedy) or lie in [0.0001, 10000]"),
        ("seed 1.5", "--seed '1.5' must be a whole number"),
        ("ignore_eos perhaps", "--ignore-eos 'perhaps' must be 1 for yes or 0 for no"),
        ("logit_bias x", "--logit-bias 'x' must have the form ID=VALUE, such as 42=-1.5"),
        ("temprature 1", "there is no setting temprature: /set alone lists them"),
        ("temperature", "/set temperature needs a value; default restores the one it had at the start"),
    ],
)
def test_a_setting_is_refused_as_its_flag_refuses_it(converse: Chat, typed: str, error: str) -> None:
    session, _, told = converse(f"/set {typed}")
    assert f"error: {error}\n" in told
    assert session.settings == session.settings_at_start


def test_the_templates_own_variables_can_be_set(converse: Chat) -> None:
    source = (
        "{% for m in messages %}{{ m.content }}{% endfor %}"
        "{% if enable_thinking is defined %}{{ enable_thinking }}{% endif %}"
    )
    config = EngineConfig(drafter=NoDrafter(), num_threads=1, chat_template=source)
    with Engine(config) as engine, StopOnInterrupt() as interrupt:
        session = Session(
            engine,
            THREE,
            TypedLines(interrupt),
            options=ChatOptions(),
            form=OutputOptions(),
            files=KeptFiles(MAX_BYTES),
        )
        _, _, told = converse("/set enable_thinking false", "/set", "one", session=session)
        assert "enable_thinking     false\n" in told
        assert session.settings.variables == {"enable_thinking": False}
        prompt = session.conversation.prompt("")
        seen = engine.tokenizer.decode(engine.encode(prompt, chat_template_kwargs=session.settings.variables))
        assert seen.endswith("False")
        assert "enable_thinking " in completions(session, "/set ena")
        converse("/set enable_thinking default", session=session)
        assert session.settings.variables == {}


def test_a_conversation_is_saved_and_comes_back(converse: Chat, tmp_path: Path) -> None:
    file = tmp_path / "talk.json"
    typed = ("/system Be brief.", "/set temperature 0.5", "one", "two", "/shift 1", f"/save {file}")
    session, _, told = converse(*typed)
    assert f"2 turns saved to {file}" in told
    other, _, told = converse(f"/load {file}")
    assert "2 turns so far; the last question was: two" in told
    assert other.conversation.turns == session.conversation.turns
    assert other.conversation.prompt("x") == session.conversation.prompt("x")
    assert other.settings == session.settings
    roles = [message["role"] for message in json.loads(file.read_text())["messages"]]
    assert roles == ["system", "user", "assistant", "user", "assistant"]


def test_a_kept_conversation_is_written_turn_by_turn(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "talk.json"
    flags = ("chat", BUILTIN_TARGET, "-n", "2", "--ignore-eos", "--drafter", "none")
    run(*flags, "--resume", str(file), "--temperature", "0.5", "-q", "one")
    assert len(json.loads(file.read_text())["messages"]) == 2
    shown = run(*flags, "--resume", str(file), "-s", "9", typed="two\n/undo\n/exit\n")
    assert shown.exit_code == 0, shown.output
    values = json.loads(file.read_text())
    assert [message["content"] for message in values["messages"][::2]] == ["one"]
    assert (values["settings"]["temperature"], values["settings"]["seed"]) == (0.5, 9)
    file.write_text("{")
    assert run(*flags, "--resume", str(file), "-q", "x").exit_code == 2
    assert file.read_text() == "{"


def test_a_kept_file_that_another_program_changed_stays_and_the_conversation_goes_on_beside_it(
    converse: Chat, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "talk.json"
    beside = tmp_path / "talk-3.json"
    others = {}
    (tmp_path / "talk-2.json").write_text("others too")

    def change_once(session: Session) -> Transcript:
        if file.exists() and not others:
            file.write_text("another's")
            others["changed"] = True
        return transcript_of(session)

    monkeypatch.setattr("forerun.cli.chat.files.transcript_of", change_once)
    session, _, told = converse("one", "two", "three", options=ChatOptions(resume=file))
    assert told.count("was changed by another program") == 1
    assert f"{file} was changed by another program and is not overwritten: this conversation is now in {beside}" in told
    assert (file.read_text(), (tmp_path / "talk-2.json").read_text()) == ("another's", "others too")
    assert len(json.loads(beside.read_text())["messages"]) == 6
    assert said(session) == ["one", "two", "three"]
    file.unlink()
    converse("one", "/undo", options=ChatOptions(resume=file))
    assert json.loads(file.read_text())["messages"] == []


def test_the_oldest_turns_make_room_where_the_user_wants_it(
    engine: Engine, converse: Chat, monkeypatch: pytest.MonkeyPatch
) -> None:
    talk = ["x " * 30] * 5
    monkeypatch.setattr(engine, "max_length", 300)
    session, shown, told = converse("/system Be brief.", *talk)
    assert "exceeds the context of 300" in told
    assert "/shift drops the oldest turns" in told
    num_answers = len(shown.splitlines())
    assert 2 <= num_answers < 5
    session, shown, told = converse(*talk, options=ChatOptions(context_shift=True, system_prompt="Be brief."))
    assert len(shown.splitlines()) == len(session.conversation.turns) == 5
    assert told.count("(left out from now on: the oldest") == 1
    assert 0 < session.conversation.num_dropped < num_answers
    assert session.conversation.prompt("x")[0] == {"role": "system", "content": "Be brief."}


def test_tab_completes_commands_and_settings(converse: Chat) -> None:
    session, _, _ = converse("/exit")
    assert completions(session, "/sy") == ["/system "]
    assert completions(session, "!re") == ["!regenerate "]
    assert len(completions(session, "/")) == len(COMMANDS)
    assert completions(session, "/set temp") == ["temperature "]
    assert "seed " in completions(session, "/set ")
    assert completions(session, "hello /s") == completions(session, "/load ") == completions(session, "") == []
