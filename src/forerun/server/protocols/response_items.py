"""The items of an answer in the Responses API."""

import json
from collections.abc import Mapping

from forerun.server.protocols.answer import Call, Part
from forerun.server.protocols.earlier_items import OwnTool
from forerun.server.protocols.sse import Body
from forerun.text.output.json_text import object_of


def item_of(part: Part, id_: str, status: str, *, own: Mapping[str, OwnTool], is_new: bool) -> Body:
    """A part of an answer as an item.

    Args:
        own: the client's tools by the names that the model sees.
        is_new: nothing of it is written yet.
    """
    if isinstance(part, Call):
        return call_item(part, id_, status, own_tool(own, part))
    if part.is_reasoning:
        content = [] if is_new else [{"type": "reasoning_text", "text": part.text}]
        thought = {"summary": [], "content": content, "encrypted_content": None}
        return {"type": "reasoning", "id": f"rs_{id_}", **thought, "status": status}
    content = [] if is_new else [text_part(part.text)]
    return {"type": "message", "id": f"msg_{id_}", "role": "assistant", "status": status, "content": content}


def call_item(call: Call, id_: str, status: str, own: OwnTool) -> Body:
    """A call as an item, with the client's own name of the tool."""
    about = {"call_id": call.id, "name": own.name, "status": status}
    if own.namespace is not None:
        about["namespace"] = own.namespace
    if own.is_custom:
        return {"type": "custom_tool_call", "id": f"ctc_{id_}", **about, "input": custom_input(call.arguments)}
    return {"type": "function_call", "id": f"fc_{id_}", **about, "arguments": call.arguments}


def own_tool(own: Mapping[str, OwnTool], call: Call) -> OwnTool:
    """The client's tool that a call means."""
    return own.get(call.name) or OwnTool(name=call.name)


def custom_input(arguments: str) -> str:
    """The text for a custom tool; the arguments themselves if the call is incomplete."""
    found = object_of(arguments)
    if found is None:
        return arguments
    text = found.get("input", "")
    return text if isinstance(text, str) else json.dumps(text, ensure_ascii=False)


def text_part(text: str) -> Body:
    """A text as a part of a message."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
