"""forerun chat: history, commands and one-shot messages."""

import json

from forerun.text.conversation import Conversation
from tests.cli.conftest import Run

SHORT = ("-n", "8", "--ignore-eos")


def test_a_templated_conversation_is_a_list_of_messages() -> None:
    chat = Conversation(has_template=True, system_prompt="Be brief.")
    chat.add("Hi", "Hello")
    system = chat.prompt("Why?")[0]
    turn = chat.prompt("Why?")[1:]
    assert system == {"role": "system", "content": "Be brief."}
    assert [message["role"] for message in turn] == ["user", "assistant", "user"]  # type: ignore[index]
    chat.clear()
    assert chat.prompt("x") == [system, {"role": "user", "content": "x"}]


def test_a_conversation_without_a_template_is_one_growing_text() -> None:
    chat = Conversation(has_template=False, system_prompt=None)
    assert chat.prompt("Once") == "Once"
    chat.add("Once", " upon")
    assert chat.prompt("Then") == "Once upon\nThen"


def test_one_message_is_answered_as_the_template_says(run: Run, target: str) -> None:
    shown = run("chat", target, "-q", "Hi", "--system-prompt", "Be brief.", "--stats", *SHORT)
    assert shown.exit_code == 0, shown.output
    prompt = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    expected = json.loads(run("generate", target, "-p", prompt, "--json", *SHORT).stdout)["text"]
    assert shown.stdout.rstrip("\n") == expected.rstrip("\n")
    assert "tokens/s" in shown.stderr


def test_commands_are_obeyed_and_unknown_ones_named(run: Run, target: str) -> None:
    shown = run("chat", target, *SHORT, typed="/stats\nHi\n!stats\n/clear\n/nonsense\n/exit\nnever read\n")
    assert shown.exit_code == 0, shown.output
    assert "nothing was answered yet" in shown.stderr
    assert shown.stderr.count("first token after") == 2  # after the answer, and on request
    assert "forgotten" in shown.stderr
    assert "there is no command /nonsense" in shown.stderr
    assert "cut after 8 tokens" in shown.stderr


def test_a_later_turn_has_the_earlier_ones_before_it_until_they_are_cleared(run: Run, target: str) -> None:
    fresh = run("chat", target, "-q", "Hi", *SHORT).stdout
    answers = run("chat", target, *SHORT, typed="Hi\nHi\n/clear\nHi\n").stdout
    assert answers.startswith(fresh)
    assert answers.endswith(fresh)
    assert answers != fresh * 3


def test_a_turn_that_does_not_fit_is_told_and_the_chat_goes_on(run: Run, target: str) -> None:
    shown = run("chat", target, *SHORT, typed=f"{'x ' * 600}\nHi\n")
    assert shown.exit_code == 0, shown.output
    assert "/clear" in shown.stderr
    assert shown.stdout == run("chat", target, "-q", "Hi", *SHORT).stdout


def test_a_model_without_a_template_says_once_that_it_continues_text(run: Run, plain: str) -> None:
    finished = run("chat", plain, *SHORT, typed="the fox\nand the\n")
    assert finished.exit_code == 0, finished.stderr
    assert finished.stderr.count("no chat template") == 1


def test_a_message_is_answered_as_ollama_is_asked(run: Run, target: str) -> None:
    expected = run("chat", target, "-q", "Hi\nyou", "-sys", "Be brief.", *SHORT).stdout
    assert run("run", target, "Hi\nyou", "--system", "Be brief.", *SHORT).stdout == expected
    assert run("run", target, "--system-prompt", "Be brief.", *SHORT, typed="Hi\nyou\n").stdout == expected
    assert run("run", target, " ").stderr == "forerun: error: the message is empty: give at least one character\n"
    assert "there is no message for the model 'Why is the sky blue?'" in run("run", "Why is the sky blue?").stderr


def test_every_answer_of_a_chat_may_be_an_object(run: Run, target: str) -> None:
    shown = run("chat", target, "--json", *SHORT, typed="Hi\nHi\n")
    texts = [json.loads(line)["text"] for line in shown.stdout.splitlines()]
    assert len(texts) == 2
    assert texts[0].strip() == run("chat", target, "-q", "Hi", *SHORT).stdout.strip()
