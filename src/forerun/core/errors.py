"""The exception tree. Every error a user can cause is a `ForerunError`."""


class ForerunError(Exception):
    """The base of all errors. The message says what was seen, what is needed and what to do."""


class ConfigError(ForerunError):
    """A setting is unknown, out of range, or contradicts another one."""


class CheckpointError(ForerunError):
    """A checkpoint is missing, incomplete, damaged, or of a family that is not supported."""


class VocabularyError(ForerunError):
    """Draft and target do not give the same tokens the same ids."""


class ContextOverflowError(ForerunError):
    """Prompt and requested tokens do not fit into the context."""


class NumericalError(ForerunError):
    """No token can be sampled from the scores: NaN or infinity from the target, or settings that leave no token."""


class GrammarError(ForerunError):
    """A grammar allows no further token before its text is complete, or became too complex."""


class EngineBusyError(ForerunError):
    """The engine is in use by another thread, or was closed."""


class RankLostError(ForerunError):
    """A rank of a model that several processes share has ended, failed or stopped."""


class DrafterUnreachableError(ForerunError):
    """A drafter process cannot be reached or does not prove that it has the key."""


def require(condition: bool, message: str) -> None:
    """Raise ConfigError with `message` unless `condition` holds."""
    if not condition:
        raise ConfigError(message)
