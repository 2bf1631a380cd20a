"""Which conversation a request belongs to."""

import json
from typing import Any

from forerun.fleet.homes import session_of

FIRST = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Name a colour."}]
SECOND = [*FIRST, {"role": "assistant", "content": "Red."}, {"role": "user", "content": "Another."}]


def session(asked: Any, *, owner: str = "", headers: dict[bytes, bytes] | None = None) -> str:
    return session_of(owner, headers or {}, json.dumps(asked).encode(), max_json_depth=64)


def test_every_turn_of_a_conversation_has_the_same_name() -> None:
    assert session({"messages": FIRST}) == session({"messages": SECOND, "temperature": 0.5})


def test_conversations_that_begin_otherwise_have_other_names() -> None:
    others = [{"messages": FIRST[:1]}, {"messages": [*FIRST[:1], {"role": "user", "content": "?"}]}, {"prompt": "a"}]
    assert len({session(asked) for asked in [{"messages": FIRST}, *others]}) == 4


def test_a_client_may_name_its_conversation() -> None:
    named = {"prompt_cache_key": "mine"}
    assert session({"messages": FIRST, **named}) == session({"prompt": "x", **named})
    assert session({"prompt": "x"}, headers={b"x-session-id": b"1"}) == session({}, headers={b"x-session-id": b"1"})
    assert session({"prompt": "x"}, headers={b"x-session-id": b"1"}) != session({}, headers={b"x-session-id": b"2"})


def test_conversations_of_two_keys_are_never_the_same() -> None:
    assert session({"messages": FIRST}, owner="a") != session({"messages": FIRST}, owner="b")
    assert session({"prompt_cache_key": "x"}, owner="a") != session({"prompt_cache_key": "x"}, owner="b")


def test_a_prompt_that_grows_keeps_its_name() -> None:
    text = "x" * 300
    ids = list(range(300))
    assert session({"prompt": text}) == session({"prompt": text + "more"}) == session({"prompt": [text, "other"]})
    assert session({"prompt": ids}) == session({"prompt": [*ids, 7]}) == session({"prompt": [ids]})


def test_what_is_no_request_has_a_name_too() -> None:
    bodies = (b"", b"{", b"[]", b"3", b'{"messages": 3}', b'{"messages": []}', b'{"messages": [1]}', b'{"prompt": []}')
    for body in bodies:
        assert session_of("", {}, body, max_json_depth=64)
