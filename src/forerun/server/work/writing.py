"""Starts a text in the engine. No other module of the server does."""

from typing import TYPE_CHECKING

from forerun.server.work.job import Order

if TYPE_CHECKING:  # imports torch, which is loaded in the engine's thread after the server listens
    from forerun.engine.engine import Engine
    from forerun.engine.stream import GenerationStream


def start(engine: "Engine", order: Order) -> "GenerationStream":
    """A stream of one order's text."""
    return engine.stream(
        order.prompt_ids, order.params, drafter=order.drafter, prediction=order.prediction, owner=order.owner
    )
