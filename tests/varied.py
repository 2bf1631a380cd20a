"""A drafter's settings together with its policies, each named by its fields alone."""

from dataclasses import dataclass, fields, replace
from typing import Any

from forerun.core.config import EngineConfig
from forerun.core.drafter_config import DrafterConfig, DraftModel, LayerSkip, PromptLookup, TokenRecycling
from forerun.drafting.policies import Policies, RemotePolicy, TreePolicy
from forerun.engine.engine import Engine


@dataclass(frozen=True, slots=True)
class Varied:
    """What a test asks of a drafter."""

    config: Any  # the drafter's own, whose fields the test knows
    policies: Policies

    def changed(self, **values: Any) -> "Varied":
        """The same with these fields of the config, else of the policies, changed."""
        config = self.config
        policies = self.policies
        for name, value in values.items():
            if name in names_of(config):
                config = replace(config, **{name: value})
            else:
                kind = next(kind for kind in ("tree", "lookup", "skip") if name in names_of(getattr(policies, kind)))
                policies = replace(policies, **{kind: replace(getattr(policies, kind), **{name: value})})
        return Varied(config, policies)


# Every drafted token is then the draft's own.
NO_LOOKUP = Policies(tree=TreePolicy(looks_up=False), remote=RemotePolicy(looks_up=False))
NO_FILLING = Policies(remote=RemotePolicy(looks_up=False))


def names_of(settings: Any) -> set[str]:
    return {field.name for field in fields(settings)}


def varied(config: "DrafterConfig | Varied", **values: Any) -> Varied:
    """These settings with the policies that suit them, and these fields of either changed."""
    start = config if isinstance(config, Varied) else Varied(config, Policies.of(config))
    return start.changed(**values)


def draft_model(**values: Any) -> Varied:
    return varied(DraftModel(), **values)


def prompt_lookup(**values: Any) -> Varied:
    return varied(PromptLookup(), **values)


def recycling(**values: Any) -> Varied:
    return varied(TokenRecycling(), **values)


def layer_skip(**values: Any) -> Varied:
    return varied(LayerSkip(), **values)


def engine_with(drafter: DrafterConfig | Varied, **settings: Any) -> Engine:
    """An engine whose drafter has these policies."""
    chosen = varied(drafter)
    return Engine(EngineConfig(drafter=chosen.config, **settings), policies=chosen.policies)
