"""Named skip sets, and their files: those that forerun found for a model, and those that SWIFT published.

forerun's own file is for one model, which it names:

    {"version": 1, "model": identity, "num_layers": 40,
     "sets": [{"name": "code", "attention": [3, 7], "mlp": [5], "hits": 812.0, "rows": 960.0}]}

SWIFT's file has sets for several models: an object {name: {"attention": [3, 7], "mlp": [5]}} with names such as
"llama-2-13b_cnndm". Layers are numbered from 0. Sets in either file never skip the first or the last layer.
"""

import json
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from reprlib import repr as short
from typing import Final

from forerun.core.errors import ConfigError
from forerun.core.json_file import MAX_JSON_BYTES, read_bounded, shown
from forerun.core.output_file import write_whole
from forerun.core.sublayers import ATTENTION, MLP, NOTHING, SkipSet, every_other_layer

logger = logging.getLogger(__name__)

SETS_NAME: Final = "forerun_layer_skip.json"
VERSION: Final = 1
KEYS: Final = frozenset(("version", "model", "num_layers", "sets"))
SET_KEYS: Final = frozenset(("name", "attention", "mlp", "hits", "rows"))
MAX_COUNT: Final = 2.0**53
LAYERS_BY_SIZE: Final = {"7b": 32, "13b": 40, "34b": 48, "70b": 80}  # layers of the Llama models in SWIFT's set names
SIZE: Final = re.compile(r"(?<![\d.])(7b|13b|34b|70b)(?![a-z\d])", re.IGNORECASE | re.ASCII)
ADVICE: Final = "give a file that `forerun prepare` wrote for this model, or SWIFT's own for one of its size"


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedSet:
    """Sublayers to skip, and how often the rest of the model predicted the next token.

    Args:
        name: used only in reports.
        skipped: the sublayers that a draft pass skips.
        num_hits: correct guesses; old ones may count less than one.
        num_rows: all guesses, with the same weights.
    """

    name: str
    skipped: SkipSet
    num_hits: float = 0.0
    num_rows: float = 0.0


def first_set(num_layers: int, known: Sequence[NamedSet], absent: SkipSet = NOTHING) -> SkipSet:
    """The initial skip set: the set that the last search used, which is the first known one, or every other layer."""
    return known[0].skipped - absent if known else every_other_layer(num_layers, absent)


def sets_beside(model: Path) -> Path:
    """The path of a checkpoint's skip sets: in its folder, or next to a model file, with that file's name in it."""
    return model.with_suffix(f".{SETS_NAME}") if model.is_file() else model / SETS_NAME


def sets_in_cache(cache_folder: Path, identity: str) -> Path:
    """The path of a model's skip sets in the user's cache, for model folders that are not writable."""
    return cache_folder / "layer_skip" / f"{identity}.json"


def write_sets(path: Path, identity: str, num_layers: int, sets: Sequence[NamedSet]) -> None:
    """Write the sets of a model atomically.

    Raises:
        ConfigError: the file cannot be written, or its content could not be read back.
    """
    lines = ",\n".join(f"    {json.dumps(_set_values(named))}" for named in sets)
    text = (
        f'{{\n  "version": {VERSION},\n  "model": {json.dumps(identity)},\n  "num_layers": {num_layers},\n'
        f'  "sets": [\n{lines}\n  ]\n}}\n'
    )
    try:
        _read_own(json.loads(text), num_layers, identity)
    except ValueError as error:
        raise ConfigError(f"the skip sets for {path} could not be read back: {error}") from error
    write_whole(path, text, makes_folder=True)


def read_sets(path: Path, num_layers: int, identity: str | None = None) -> list[NamedSet]:
    """The sets in a file, in its order; from SWIFT's file only those that fit `num_layers` layers, without hit records.

    A set of SWIFT's fits if all of its layers can be skipped and if the model size in its name, if any, is that of a
    Llama model with `num_layers` layers.

    Args:
        identity: the model's identity; a forerun file for another model is refused. None: not compared.

    Raises:
        ConfigError: the file does not exist, is not a file of skip sets, or has none for this model.
    """
    try:
        values = json.loads(read_bounded(path, MAX_JSON_BYTES), object_pairs_hook=_without_repeats)
        if not isinstance(values, dict):
            raise ValueError(f"it is {short(values)}, an object is needed")
        if "version" in values:
            return _read_own(values, num_layers, identity)
        return _read_published(values, num_layers)
    except OSError as error:
        raise ConfigError(f"the skip sets {shown(str(path))} cannot be read ({error}): {ADVICE}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{shown(str(path))} holds no skip sets for this model ({error}): {ADVICE}") from error


def read_found_sets(path: Path, num_layers: int, identity: str) -> list[NamedSet]:
    """The sets of a file at a default path; none if it does not exist or cannot be used for this model."""
    try:
        return read_sets(path, num_layers, identity) if path.is_file() else []
    except ConfigError as error:
        logger.warning("known sets are not used: %s", error)
        return []


# The functions below parse untrusted data. They raise ValueError with the value seen.


def _read_own(values: Mapping[str, object], num_layers: int, identity: str | None) -> list[NamedSet]:
    if values["version"] != VERSION:
        raise ValueError(f"version {short(values['version'])}, this forerun reads {VERSION}")
    if set(values) != KEYS:
        raise ValueError(f"missing or unknown: {short(sorted(set(values) ^ KEYS))}")
    if values["num_layers"] != num_layers:
        raise ValueError(f"it is for {short(values['num_layers'])} layers, the model has {num_layers}")
    if not isinstance(values["model"], str) or identity not in (None, values["model"]):
        raise ValueError(f"it is for the model {short(values['model'])}, this one is {identity}")
    if not isinstance(values["sets"], list):
        raise ValueError(f"sets is {short(values['sets'])}, a list is needed")
    return [_read_set(entry, num_layers) for entry in values["sets"]]


def _read_set(entry: object, num_layers: int) -> NamedSet:
    if not isinstance(entry, dict) or set(entry) != SET_KEYS:
        raise ValueError(f"a set is {short(entry)}, an object of {', '.join(sorted(SET_KEYS))} is needed")
    name = _read_name(entry["name"])
    hits = _read_count(entry, "hits")
    rows = _read_count(entry, "rows")
    skipped = _read_sublayers(name, entry)
    if _last_layer(skipped) > num_layers - 2:
        raise ValueError(f"set {short(name)} skips layer {_last_layer(skipped)} of {num_layers}, which is never done")
    if hits > rows:
        raise ValueError(f"set {short(name)} has {hits} hits of {rows} rows")
    return NamedSet(name=name, skipped=skipped, num_hits=hits, num_rows=rows)


def _read_published(values: Mapping[str, object], num_layers: int) -> list[NamedSet]:
    skipped_by_name = {_read_name(name): _read_sublayers(name, entry) for name, entry in values.items()}
    fitting = [
        NamedSet(name=name, skipped=skipped)
        for name, skipped in skipped_by_name.items()
        if _suits(name, skipped, num_layers)
    ]
    if not fitting:
        seen = [f"{short(name)} up to layer {_last_layer(skipped)}" for name, skipped in skipped_by_name.items()]
        raise ValueError(f"the model has {num_layers} layers, the sets are {', '.join(seen[:6]) or 'none'}")
    return fitting


def _suits(name: str, skipped: SkipSet, num_layers: int) -> bool:
    size = SIZE.search(name)
    if size and LAYERS_BY_SIZE[size[0].lower()] != num_layers:
        return False
    return _last_layer(skipped) <= num_layers - 2


def _last_layer(skipped: SkipSet) -> int:
    return max((layer for layer, _ in skipped), default=0)


def _read_name(name: object) -> str:
    if not isinstance(name, str) or not name.isprintable():
        raise ValueError(f"the name of a set is {short(name)}, printable text is needed")
    return name


def _read_count(entry: Mapping[str, object], key: str) -> float:
    count = entry[key]
    if isinstance(count, bool) or not isinstance(count, int | float) or not 0 <= count <= MAX_COUNT:
        raise ValueError(f"{key} of a set is {short(count)}, a number from 0 to 2**53 is needed")
    return float(count)


def _read_sublayers(name: str, entry: object) -> SkipSet:
    """A set's sublayers; any layer from 1 on is valid, since the model's size may not be known yet."""
    match entry:
        case {"attention": list(attention), "mlp": list(mlp)}:
            pass
        case _:
            raise ValueError(f"set {short(name)} is {short(entry)}, a list of layers for attention and mlp is needed")
    for layers in (attention, mlp):
        if not all(type(layer) is int and layer >= 1 for layer in layers) or len(set(layers)) != len(layers):
            raise ValueError(f"set {short(name)} skips {short(layers)}, different layers from 1 on are needed")
    return frozenset({*((layer, ATTENTION) for layer in attention), *((layer, MLP) for layer in mlp)})


def _without_repeats(pairs: Sequence[tuple[str, object]]) -> dict[str, object]:
    values = dict(pairs)
    if len(values) != len(pairs):
        raise ValueError(f"a key occurs twice among {short([key for key, _ in pairs])}")
    return values


def _set_values(named: NamedSet) -> dict[str, object]:
    skipped = sorted(named.skipped)
    return {
        "name": named.name,
        "attention": [layer for layer, kind in skipped if kind == ATTENTION],
        "mlp": [layer for layer, kind in skipped if kind == MLP],
        "hits": named.num_hits,
        "rows": named.num_rows,
    }
