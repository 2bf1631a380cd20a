"""What the process in front of the replicas answers itself, without any replica."""

import asyncio
from typing import Any, cast

import httpx
import pytest

from forerun.fleet.config import FleetConfig
from forerun.fleet.fleet import Fleet
from forerun.fleet.forwarding import Forwarder
from forerun.fleet.front import front_app


class FewReplicas:
    """A fleet of which so many replicas are ready."""

    def __init__(self, num_ready: int) -> None:
        self.num_ready = num_ready
        self.num_replicas = 2
        self.config = FleetConfig(num_replicas=2)


def answers_of(num_ready: int) -> dict[str, httpx.Response]:
    fleet = cast(Fleet, FewReplicas(num_ready))

    async def ask() -> dict[str, httpx.Response]:
        transport = httpx.ASGITransport(app=front_app(fleet, Forwarder(fleet)))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return {path: await client.get(path) for path in ("/health", "/livez", "/ready")}

    return asyncio.run(ask())


@pytest.mark.parametrize(("num_ready", "status"), [(0, 503), (1, 200), (2, 200)])
def test_one_replica_that_is_ready_is_enough(num_ready: int, status: int) -> None:
    answers = answers_of(num_ready)
    assert answers["/livez"].status_code == 200
    assert answers["/health"].status_code == answers["/ready"].status_code == status
    told: dict[str, Any] = answers["/health"].json()
    assert told == {"status": "ok"} if num_ready else told["error"]["message"] == "Loading model"
