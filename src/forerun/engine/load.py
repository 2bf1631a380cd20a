"""`load` opens an engine in one call."""

from typing import Any

from forerun.core.config import EngineConfig
from forerun.core.drafter_config import BUILTIN_TARGET, automatic_drafter
from forerun.core.errors import ConfigError
from forerun.engine.engine import Engine


def load(target: str = BUILTIN_TARGET, draft: str | None = None, **settings: Any) -> Engine:
    """Open an engine for `target` with the default drafter (see `automatic_drafter`), and `draft` among its drafters.

    Args:
        target: checkpoint folder, hub name, or the built-in target.
        draft: checkpoint folder or hub name of a smaller model with the same tokens, or of a draft head.
        settings: any field of EngineConfig.
    """
    if draft is not None and "drafter" in settings:
        raise ConfigError(f"draft {draft!r} and a drafter were both given: set the draft in the drafter's config")
    settings.setdefault("drafter", automatic_drafter(draft))
    return Engine(EngineConfig(target=target, **settings))
