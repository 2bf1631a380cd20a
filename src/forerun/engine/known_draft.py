"""The draft of a target: the one that the tables of names list, else the package's own for its vocabulary."""

from forerun.checkpoints.huggingface.config import CONFIG_NAME
from forerun.checkpoints.known_models import find_known
from forerun.checkpoints.open import builtin_folder, open_source
from forerun.checkpoints.short_names.catalogue import find_named
from forerun.core.drafter_config import AUTO_DRAFT, KNOWN_DRAFTS
from forerun.core.errors import CheckpointError, ConfigError
from forerun.text.vocabulary import Vocabulary


def draft_of(vocabulary: Vocabulary) -> str | None:
    """The name of the draft for this vocabulary; None if the package has none."""
    name = KNOWN_DRAFTS.get(vocabulary.fingerprint)
    return name if name is not None and (builtin_folder(name) / CONFIG_NAME).is_file() else None


def known_draft(target: str) -> str | None:
    """The name of the draft for a target; None also if the target cannot be read, which opening it will report."""
    listed = find_named(target) or find_known(target)
    if listed is not None:
        return listed.draft
    try:
        return draft_of(Vocabulary.of(open_source(target).tokenizer()))
    except CheckpointError:
        return None


def draft_for(target: str, draft: str | None) -> str:
    """The given draft; the known one for the target if none or "auto" is given.

    Raises:
        ConfigError: there is neither.
    """
    found = known_draft(target) if draft in (None, AUTO_DRAFT) else draft
    if found is None:
        raise ConfigError(f"no draft is known for {target}: name a smaller model with the same tokens with --draft")
    return found
