"""Chat templates that would run for ever, or take all memory, take neither time nor memory from others."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from forerun.core.errors import ConfigError
from forerun.server.config import ServerConfig
from forerun.server.protocol.errors import ApiError
from forerun.server.work.templates import TemplateRenderer
from forerun.text.chat_template import ChatTemplate

MESSAGES = [{"role": "user", "content": "hi"}]
ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
GOOD = "{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}{{ bos }}"


def rendered(source: str, *, times: int = 1, messages: Any = MESSAGES, **limits: Any) -> list[str]:
    """The text, or the code of the error, of the same messages several times."""

    async def render() -> list[str]:
        template = ChatTemplate(source=source, special_tokens={"bos": "<s>"})
        renderer = TemplateRenderer(template, ServerConfig(**limits))
        found = []
        try:
            for _ in range(times):
                try:
                    found.append(await renderer.render(messages, {}))
                except ApiError as error:
                    found.append(error.code)
        finally:
            await renderer.close()
        return found

    return run(render())


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)


def test_a_template_is_rendered_as_in_this_process() -> None:
    assert rendered(GOOD, times=2) == ["user: hi<s>"] * 2
    template = ChatTemplate(source=GOOD, special_tokens={"bos": "<s>"})
    strange = [{"role": "user", "content": 'ü\n"\\ \u2028\x00'}]
    assert rendered(GOOD, messages=strange) == [template.render(strange)]


@pytest.mark.parametrize(
    "source",
    [
        ENDLESS,
        "{{ 'x' * 10000000000 }}",
        "{{ ['x' * 1000000] * 1000 | join }}{{ 'y' * 900000000 }}",
        "{{ 10 ** (10 ** 8) }}",
        "{% macro m() %}{{ m() }}{{ m() }}{% endmacro %}{{ m() }}",
        "{{ messages.__class__.__mro__ }}{{ ''.__class__.__base__.__subclasses__() }}",
    ],
)
def test_a_hostile_template_is_ended_and_the_next_request_begins_anew(source: str) -> None:
    found = rendered(source, times=2, max_template_s=0.5)
    assert found[0] == found[1]
    assert found[0] in ("template_limit", "invalid_value")


def test_a_template_that_hangs_for_some_messages_serves_the_others() -> None:
    source = "{% if messages | length > 1 %}" + ENDLESS + "{% endif %}ok"

    async def render() -> list[str]:
        renderer = TemplateRenderer(ChatTemplate(source=source, special_tokens={}), ServerConfig(max_template_s=0.5))
        try:
            with pytest.raises(ApiError, match="time or memory"):
                await renderer.render(MESSAGES * 2, {})
            return [await renderer.render(MESSAGES, {})]
        finally:
            await renderer.close()

    assert run(render()) == ["ok"]


def test_a_request_that_is_given_up_does_not_leave_its_answer_to_the_next() -> None:
    async def render() -> str:
        renderer = TemplateRenderer(ChatTemplate(source=GOOD, special_tokens={"bos": ""}), ServerConfig())
        try:
            await renderer.begin()
            first = asyncio.create_task(renderer.render([{"role": "user", "content": "one"}], {}))
            await asyncio.sleep(0)
            first.cancel()
            return await renderer.render([{"role": "user", "content": "two"}], {})
        finally:
            await renderer.close()

    assert run(render()) == "user: two"


def test_what_a_template_says_reaches_the_client() -> None:
    async def render() -> str:
        source = "{{ raise_exception('roles must alternate') }}"
        renderer = TemplateRenderer(ChatTemplate(source=source, special_tokens={}), ServerConfig())
        try:
            with pytest.raises(ApiError) as refusal:
                await renderer.render(MESSAGES, {})
            return str(refusal.value)
        finally:
            await renderer.close()

    assert "roles must alternate" in run(render())


def test_its_variables_are_asked_of_the_child() -> None:
    async def begin(source: str) -> frozenset[str]:
        renderer = TemplateRenderer(ChatTemplate(source=source, special_tokens={"bos": "<s>"}), ServerConfig())
        try:
            await renderer.begin()
            return renderer.variables
        finally:
            await renderer.close()

    asked = "{{ bos }}{% if enable_thinking %}{{ 7**(9**9) }}{% endif %}{{ messages }}{{ tools }}{{ reasoning }}"
    assert run(begin(asked)) == {"enable_thinking", "reasoning"}
    with pytest.raises(ConfigError, match="no Jinja template"):
        run(begin("{% if messages %}x{% endfo %}"))
