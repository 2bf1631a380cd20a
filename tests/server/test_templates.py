"""What a chat template does reaches a client as one error, and the next request is served."""

import pytest

from forerun.server.protocols.errors import ApiError
from forerun.server.work.chats import rendered
from forerun.text.chat_template import ChatTemplate
from forerun.wires.bounded_child import Limits

ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
SOURCE = (
    "{% if messages[0].content == 'hang' %}" + ENDLESS + "{% endif %}"
    "{% if messages[0].content == 'bad' %}{{ raise_exception('roles must alternate') }}{% endif %}ok"
)


def test_an_error_has_its_code_and_the_next_request_is_served() -> None:
    template = ChatTemplate(source=SOURCE, special_tokens={})

    def render(content: str) -> str:
        messages = [{"role": "user", "content": content}]
        return rendered(template, messages, {}, Limits(max_s=0.5))

    with pytest.raises(ApiError) as refusal:
        render("hang")
    assert refusal.value.code == "template_limit"
    assert render("hi") == "ok"
    with pytest.raises(ApiError, match="roles must alternate"):
        render("bad")
    assert render("hi") == "ok"
