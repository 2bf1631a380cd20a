"""The protocols that are served."""

import json
from collections.abc import Mapping, Sequence
from typing import Final

from forerun.server.protocols import anthropic_messages, chat, completions, infill, responses
from forerun.server.protocols.errors import ApiError
from forerun.server.protocols.protocol import ApiProtocol

PROTOCOLS: Final[Sequence[ApiProtocol]] = (
    chat.PROTOCOL,
    completions.PROTOCOL,
    anthropic_messages.PROTOCOL,
    responses.PROTOCOL,
    infill.PROTOCOL,
)
BY_PATH: Final[Mapping[str, ApiProtocol]] = {path: item for item in PROTOCOLS for path in item.all_paths}


def protocol_at(path: str) -> ApiProtocol:
    """The protocol of a path; for other paths the first one, which is OpenAI's."""
    return BY_PATH.get(path, PROTOCOLS[0])


def error_body(error: ApiError, *, path: str, request_id: str) -> bytes:
    """The body of an error in the format of the path's protocol."""
    return json.dumps(protocol_at(path).error(error, request_id)).encode()
