"""Calls of tools on the page: offered in the settings, shown folded, answered from the composer, kept."""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("playwright")
pytest.importorskip("forerun.server.app")

from playwright.sync_api import Browser, Page, Route, expect

from tests.server.calling import SCHEMAS
from tests.server.page.browsing import CHROMIUM, PHONE, WIDE, ask, choose, last_answer, pages, send, whole
from tests.server.serving import Served

pytestmark = [pytest.mark.page, pytest.mark.skipif(CHROMIUM is None, reason="no browser is installed")]


def tools(*names: str) -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": name, "parameters": SCHEMAS[name]}} for name in names]


def calling(page: Page, *, is_parallel: bool = False) -> list[dict[str, Any]]:
    """Let the small model, which would hardly call by itself, call after each question; what the page asks."""
    asked: list[dict[str, Any]] = []

    def demand(route: Route) -> None:
        body = route.request.post_data_json
        asked.append(body)
        has_result = body["messages"][-1]["role"] == "tool"
        choice = {"tool_choice": "none" if has_result else "required", "parallel_tool_calls": is_parallel}
        route.continue_(post_data=json.dumps({**body, **choice}))

    page.route("**/v1/chat/completions", demand)
    return asked


def answered(page: Page) -> dict[str, Any]:
    """Ask, get a call and give its result; the call."""
    choose(page, temperature="0", max_tokens="100", tools=json.dumps(tools("weather")))
    ask(page, "How is the weather?")
    expect(page.locator("#question")).to_have_attribute("placeholder", "Result of weather")
    (call,) = last_answer(page)["calls"]
    choose(page, max_tokens="8")
    ask(page, "It rains.")
    return dict(call)


def test_a_call_is_shown_folded_and_what_is_written_next_is_its_result(page: Page) -> None:
    asked = calling(page)
    call = answered(page)
    expect(page.locator(".call summary")).to_have_text("Call of weather")
    expect(page.locator(".call pre")).to_be_hidden()
    page.click(".call summary")
    assert page.inner_text(".call pre") == json.dumps(json.loads(call["arguments"]), indent=2, ensure_ascii=False)
    expect(page.locator(".tool .text")).to_have_text("Result of weatherIt rains.")
    expect(page.locator("#question")).to_have_attribute("placeholder", "Ask something")
    assert asked[0]["tools"] == tools("weather")
    function = {"name": "weather", "arguments": call["arguments"]}
    assert asked[1]["messages"] == [
        {"role": "user", "content": "How is the weather?"},
        {
            "role": "assistant", "content": "",
            "tool_calls": [{"id": call["id"], "type": "function", "function": function}],
        },
        {"role": "tool", "content": "It rains.", "tool_call_id": call["id"]},
    ]  # fmt: skip


def test_several_calls_get_their_results_one_after_the_other(page: Page) -> None:
    asked = calling(page, is_parallel=True)
    choose(page, temperature="0", max_tokens="150", tools=json.dumps(tools("end-it")))
    ask(page, "hi")
    expect(page.locator("[data-action=continue]")).to_be_hidden()
    calls = [call for call in last_answer(page)["calls"] if call["arguments"].endswith("}")]
    assert len(calls) > 1
    for number in range(1, len(calls)):
        send(page, f"result {number}")
        expect(page.locator(".tool")).to_have_count(number)
        expect(page.locator("#status")).to_have_text("Now write the result of end-it.")
    assert len(asked) == 1
    ask(page, "the last result")
    sent = asked[1]["messages"][2:]
    assert [message["tool_call_id"] for message in sent] == [call["id"] for call in calls]
    assert sent[-1]["content"] == "the last result"


def test_a_cut_call_is_shown_but_neither_sent_nor_waited_for(page: Page) -> None:
    asked = calling(page)
    choose(page, temperature="0", max_tokens="25", tools=json.dumps(tools("weather")))
    ask(page, "hi")
    (call,) = last_answer(page)["calls"]
    assert page.locator(".call pre").text_content() == call["arguments"]
    expect(page.locator(".assistant .note")).to_contain_text("Cut off: the settings allow no longer answer")
    expect(page.locator("#question")).to_have_attribute("placeholder", "Ask something")
    ask(page, "again")
    assert [message["role"] for message in asked[1]["messages"]] == ["user", "user"]


def test_an_edited_result_is_a_branch_and_a_result_again(page: Page) -> None:
    asked = calling(page)
    call = answered(page)
    page.click(".tool [data-action=edit]")
    page.fill(".edit", "It snows.")
    page.press(".edit", "Enter")
    whole(page)
    expect(page.locator(".tool .branches")).to_contain_text("2 / 2")
    assert asked[-1]["messages"][-1] == {"role": "tool", "content": "It snows.", "tool_call_id": call["id"]}


def test_calls_and_results_outlive_a_reload_and_an_export(page: Page, tmp_path: Path) -> None:
    calling(page)
    call = answered(page)
    with page.expect_download() as caught:
        page.click("#export-all")
    file = tmp_path / "conversations.json"
    caught.value.save_as(file)
    for number in range(2):
        if number:
            page.set_input_files("#import-file", file)
            page.locator("#conversations .title").first.click()
        else:
            page.reload()
        expect(page.locator(".tool .label")).to_have_text("Result of weather")
        shown = page.locator(".call pre").text_content()
        assert json.loads(shown or "") == json.loads(call["arguments"])


@pytest.mark.parametrize("message", [{"role": "tool"}, {"role": "tool", "call": {"id": "a", "name": ["b"]}}])
def test_a_result_of_no_call_is_refused(page: Page, tmp_path: Path, message: dict[str, Any]) -> None:
    file = tmp_path / "other.json"
    file.write_text(json.dumps({"conversations": [{"messages": {"a": {"parent": None, **message}}}]}))
    page.set_input_files("#import-file", file)
    expect(page.locator("#alerts")).to_contain_text("holds no conversations")


def test_of_foreign_calls_only_what_is_known_is_taken(page: Page) -> None:
    calls = [None, 3, {"id": "a", "name": "b"}, {"id": "a", "name": "<b>", "arguments": "{}", "more": 1}]
    value = {"messages": {"a": {"role": "assistant", "parent": None, "calls": calls}}}
    found = page.evaluate(
        "async (value) => (await import('/page/conversation.js')).checked(value).messages.a.calls", value
    )
    assert found == [{"id": "a", "name": "<b>", "arguments": "{}"}]


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("[{", "This is not JSON"),
        ('{"type": "function"}', "This is not an array"),
        ('[{"type": "function", "function": {"name": "a"}}, {"name": "b"}]', "Tool 2 is not of type"),
        ('[{"type": "function", "function": {"name": ""}}]', "its function has no name"),
    ],
)
def test_tools_that_are_none_are_refused_in_words_and_not_sent(page: Page, written: str, words: str) -> None:
    page.click("#open-settings")
    page.fill("#setting-tools", written)
    expect(page.locator(".problem").filter(has_text=words)).to_contain_text("Write an array, such as")
    page.click("#settings >> text=Done")
    choose(page, max_tokens="2")
    with page.expect_request("**/v1/chat/completions") as asked:
        ask(page)
    assert "tools" not in asked.value.post_data_json


def test_long_numbers_of_arguments_are_shown_as_they_are_written(page: Page) -> None:
    shown = page.evaluate(
        "async (call) => (await import('/page/calls.js')).argumentsInLines(call)",
        {"arguments": '{"id": 12345678901234567890}'},
    )
    assert shown == '{"id": 12345678901234567890}'


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_in_calls_results_and_wrong_tools(browser: Browser, server: Served, theme: Any) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    for page in pages(browser, server.url, color_scheme=theme, reduced_motion="reduce"):
        calling(page)
        answered(page)
        page.click(".call summary")
        for state in ("a call", "wrong tools"):
            if state == "wrong tools":
                page.click("#open-settings")
                page.fill("#setting-tools", "[{")
            for width in (WIDE, PHONE):
                page.set_viewport_size({"width": width, "height": 780})
                assert page.evaluate("document.documentElement.scrollWidth") <= width
                found = axe.run(page)
                assert found.violations_count == 0, f"{state} at {width} pixels: {found.generate_report()}"
