"""A description of an engine, as a line of text and for JSON."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from forerun.cli.answer_statistics import counted
from forerun.cli.model_sheet import count, size
from forerun.core.drafter_config import DrafterConfig, LayerSkip, Parallel, draft_name, drafter_name
from forerun.core.model_spec import CacheFormat

if TYPE_CHECKING:
    from forerun.engine.engine import Engine


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """The parts of an engine.

    Args:
        draft: the draft model, the address of its worker, or "self"; None without a draft.
        cache_bytes: most bytes of the cache of one text.
    """

    model: str
    num_parameters: int
    dtype: str
    kernels: str
    device: str
    num_threads: int
    drafter: str
    draft: str | None
    max_length: int
    cache: CacheFormat
    cache_bytes: int

    @classmethod
    def of(cls, engine: "Engine") -> "About":
        config = engine.config
        return cls(
            model=config.target,
            num_parameters=engine.spec.num_parameters,
            dtype=engine.dtype_name,
            kernels=engine.kernels_name,
            device=config.device,
            num_threads=engine.cores.num_threads,
            drafter=drafter_name(config.drafter),
            draft=_draft_of(config.drafter),
            max_length=engine.max_length,
            cache=config.cache,
            cache_bytes=engine.context_bytes,
        )

    def __str__(self) -> str:
        drafter = self.drafter if self.draft is None else f"{self.drafter} ({self.draft})"
        return (
            f"{self.model}: {count(self.num_parameters)} parameters in {self.dtype} on {self.device}, "
            f"{counted(self.num_threads, 'thread')}, {self.kernels} kernels; drafter {drafter}; "
            f"context {self.max_length} tokens, {size(self.cache_bytes)}{' in 8 bits' * (self.cache == 'int8')}"
        )


def _draft_of(drafter: DrafterConfig) -> str | None:
    match drafter:
        case Parallel(address=str(address)):
            return address
        case Parallel(draft=LayerSkip()):
            return "self"
        case _:
            return draft_name(drafter)
