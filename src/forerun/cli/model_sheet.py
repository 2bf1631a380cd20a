"""Facts about a model without loading it, which `inspect` and `check` print."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from forerun.checkpoints.safetensors.header import FLOAT_BYTES
from forerun.checkpoints.source import CheckpointSource
from forerun.cli.template_sheet import read_traits
from forerun.core.errors import CheckpointError
from forerun.core.mechanisms import mechanisms_of
from forerun.core.model_spec import CacheFormat, ModelSpec, kv_bytes_on_cpu, snapshot_bytes, state_bytes
from forerun.drafting.heads.stored import find_inner_head
from forerun.text.output.traits import TemplateTraits

ELEMENT_BYTES: Final = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSheet:
    """Facts about a model folder. `problem` is the reason why it cannot run; facts that could not be read are None.

    Args:
        folder: None if only the sizes are known.
        stored_dtype: that of most of the stored bytes.
        dtype: the dtype of `--dtype auto` on this machine's CPU.
        traits: the traits of its chat template; None without one.
        template_problem: why the chat template could not be tried.
        draft_head: the draft head in its own files.
        num_target_ids: for a draft with a part of its target's tokens, the number of ids of its target.
    """

    name: str
    folder: Path | None = None
    problem: str | None = None
    spec: ModelSpec | None
    stored_dtype: str | None = None
    dtype: str | None
    stored_formats: Mapping[str, int] = field(default_factory=dict)
    has_chat_template: bool = False
    traits: TemplateTraits | None = None
    template_problem: str | None = None
    num_target_ids: int | None = None
    draft_head: str | None = None
    files: tuple[tuple[str, int], ...] = ()

    @property
    def stored_bytes(self) -> int | None:
        return sum(self.stored_formats.values()) or None

    @property
    def element_bytes(self) -> int | None:
        """Bytes of an element in the dtype that `--dtype auto` computes in."""
        return None if self.dtype is None else ELEMENT_BYTES[self.dtype]

    @property
    def weights_bytes(self) -> int | None:
        """The weights in the dtype for computing, which may differ from the stored one; codes keep their size."""
        if self.spec is None or self.element_bytes is None:
            return None
        codes = {name: num for name, num in self.stored_formats.items() if name not in FLOAT_BYTES}
        if not codes:
            return self.spec.num_parameters * self.element_bytes
        num_dense = sum(num // FLOAT_BYTES[name] for name, num in self.stored_formats.items() if name in FLOAT_BYTES)
        return sum(codes.values()) + num_dense * self.element_bytes

    @property
    def kv_bytes_per_token(self) -> int | None:
        if self.spec is None or self.element_bytes is None:
            return None
        return self.spec.kv_bytes_per_token(self.element_bytes)

    @property
    def int8_kv_bytes_per_token(self) -> int | None:
        """The same with `--cache int8`."""
        return None if self.spec is None else self.spec.kv_bytes_per_token(1, "int8")

    @property
    def state_bytes(self) -> int | None:
        """Of what layers without attention keep of a text as long as the longest."""
        if self.spec is None or self.element_bytes is None:
            return None
        return state_bytes(self.spec, self.spec.max_positions, self.element_bytes)

    @property
    def snapshot_bytes(self) -> int | None:
        """Of a place where a text is saved in these layers, at most."""
        if self.spec is None or self.element_bytes is None:
            return None
        return snapshot_bytes(self.spec, self.element_bytes)

    @property
    def bytes_at_max_length(self) -> int | None:
        """Weights and a cache of the longest context on a CPU, both in the dtype the checkpoint is computed in."""
        return self._bytes_at_max_length("model")

    @property
    def int8_bytes_at_max_length(self) -> int | None:
        """The same with `--cache int8`."""
        return self._bytes_at_max_length("int8")

    def _bytes_at_max_length(self, cache: CacheFormat) -> int | None:
        if self.spec is None or self.weights_bytes is None or self.element_bytes is None:
            return None
        return self.weights_bytes + kv_bytes_on_cpu(self.spec, self.spec.max_positions, self.element_bytes, cache)

    def to_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        return asdict(self) | {
            "folder": None if self.folder is None else str(self.folder),
            "supported": self.problem is None,
            "num_parameters": None if self.spec is None else self.spec.num_parameters,
            "stored_bytes": self.stored_bytes,
            "weights_bytes": self.weights_bytes,
            "kv_bytes_per_token": self.kv_bytes_per_token,
            "int8_kv_bytes_per_token": self.int8_kv_bytes_per_token,
            "state_bytes": self.state_bytes,
            "snapshot_bytes": self.snapshot_bytes,
            "bytes_at_max_length": self.bytes_at_max_length,
            "int8_bytes_at_max_length": self.int8_bytes_at_max_length,
            "files": [{"name": name, "bytes": num_bytes} for name, num_bytes in self.files],
        }


def read_sheet(source: CheckpointSource) -> ModelSheet:
    """Read all facts that can be read; the first problem is kept."""
    from forerun.backends.dtypes import Conditions, compute_dtype  # imports torch where there is no C library

    problems: list[str] = []
    spec = _attempt(source.spec, problems)
    stored_formats = _attempt(source.stored_formats, problems)
    stored = None if stored_formats is None else source.stored_dtype()
    dtype = None
    if stored is not None:
        needed = frozenset() if spec is None else mechanisms_of(spec, spec.max_positions)
        conditions = Conditions(needed=needed)
        dtype = compute_dtype("auto", stored=stored, is_quantised=False, device="cpu", conditions=conditions)
    tokenizer = _attempt(source.tokenizer, problems)
    traits, template_problem = read_traits(tokenizer)
    vocabulary = None if spec is None else _attempt(source.vocabulary_map, problems)
    head = None if spec is None else _attempt(partial(find_inner_head, source), problems)
    return ModelSheet(
        name=source.name,
        folder=source.folder,
        problem=problems[0] if problems else None,
        spec=spec,
        stored_dtype=stored,
        dtype=dtype,
        stored_formats={} if stored_formats is None else dict(stored_formats),
        has_chat_template=tokenizer is not None and tokenizer.has_chat_template,
        traits=traits,
        template_problem=template_problem,
        num_target_ids=None if vocabulary is None else len(vocabulary.draft_ids),
        draft_head=None if head is None else f"{head.spec.label}, {count(head.num_parameters)} parameters",
        files=tuple((path.name, path.stat().st_size) for path in _attempt(source.files, problems) or ()),
    )


def _attempt(read: Any, problems: list[str]) -> Any:
    """The result of `read`, or None with its error added to `problems`."""
    try:
        return read()
    except CheckpointError as error:
        problems.append(str(error))
        return None


def size(num_bytes: int | None) -> str:
    """Bytes with a unit, such as 12.3 MiB."""
    if num_bytes is None:
        return "unknown"
    value = float(num_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.4g} {unit}"
        value /= 1024
    return f"{value:.4g} TiB"


def file_rows(files: Sequence[tuple[str, int]]) -> list[tuple[str, str]]:
    """A line for each file's name and bytes."""
    return [("files" if not place else "", f"{name}  {size(num)}") for place, (name, num) in enumerate(files)]


def count(number: int) -> str:
    """A number of parameters with a unit, such as 1.54 B."""
    for limit, unit in ((10**9, " B"), (10**6, " M"), (10**3, " K")):
        if number >= limit:
            return f"{number / limit:.3g}{unit}"
    return str(number)


def print_rows(rows: Sequence[tuple[str, str]]) -> None:
    """Labels and values in two columns."""
    width = max(len(label) for label, _ in rows) + 2
    for label, value in rows:
        print(f"{label:<{width}}{value}")
