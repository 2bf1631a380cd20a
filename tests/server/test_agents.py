"""A coding agent's conversation: its requests grow, small ones of other kinds come between, little is read twice."""

from typing import Any

import httpx

from tests.server.serving import Served

RULES = "Every name says what it holds. Files are short. Tests come with the change that needs them. " * 40
TOOL = {
    "name": "read_file",
    "description": "Reads a file.",
    "input_schema": {"type": "object", "properties": {"path": {"enum": ["a.py", "b.py"]}}, "required": ["path"]},
}


def side_requests(client: httpx.Client, turn: int) -> None:
    """What agents ask beside their conversation: a title, a probe of the quota, the kind of a command."""
    title = {"messages": [{"role": "user", "content": f"A title of turn {turn}?"}], "max_tokens": 4}
    for path, asked in (
        ("/v1/chat/completions", title),
        ("/v1/messages", {"model": "claude-haiku", **title, "max_tokens": 1, "tools": []}),
        ("/v1/responses", {"input": f"Is command {turn} safe?", "max_output_tokens": 4}),
        ("/v1/completions", {"prompt": f"def turn_{turn}():", "max_tokens": 4}),
    ):
        assert client.post(path, json=asked).status_code == 200


def test_later_turns_of_an_agent_read_at_most_a_twentieth_of_their_prompt(server: Served) -> None:
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Read a file."}]
    with server.client(headers={"x-api-key": "any"}) as client:
        for turn in range(6):
            billing = f"x-anthropic-billing-header: cc_version=2.1; cc_entrypoint=cli; cch={turn}fa69{turn};"
            answer = client.post(
                "/v1/messages",
                json={
                    "model": "claude-opus", "max_tokens": 40, "temperature": 0, "messages": messages,
                    "system": [
                        {"type": "text", "text": billing},
                        {"type": "text", "text": RULES, "cache_control": {"type": "ephemeral"}},
                    ],
                    "tools": [TOOL], "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
                },
            ).json()  # fmt: skip
            cached = answer["usage"]["cache_read_input_tokens"]
            read = answer["usage"]["input_tokens"]
            assert cached + read > 1000
            assert turn == 0 or cached >= 0.95 * (cached + read)
            call = answer["content"][-1]
            assert call["name"] == "read_file"
            result = {"type": "tool_result", "tool_use_id": call["id"], "content": f"x = {turn}"}
            messages += [{"role": "assistant", "content": answer["content"]}, {"role": "user", "content": [result]}]
            side_requests(client, turn)
