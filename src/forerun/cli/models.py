"""forerun models and forerun pull: list the models with short names, and download them."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from forerun.checkpoints.short_names.catalogue import NamedModel, find_named, listed_models, named_models
from forerun.checkpoints.short_names.local import find_local
from forerun.cli.failures import ModelNotFoundError, find_model_or_head
from forerun.cli.flags import option
from forerun.cli.model_sheet import count, print_rows
from forerun.core.disk_room import gigabytes
from forerun.core.drafter_config import KNOWN_DRAFTS
from forerun.core.machine import free_memory_bytes

if TYPE_CHECKING:
    from forerun.checkpoints.known_models import KnownModel

BESIDE_WEIGHTS: Final = 1.2  # memory relative to the weights, with a cache of some thousand tokens and the program


def models(
    model: Annotated[str | None, typer.Argument(help="Show details of this model.")] = None,
    as_json: Annotated[bool, option("--json", help="Print one JSON object per model.")] = False,
) -> None:
    """List the models that have a name: size, licence, draft, and whether they are here and fit in memory."""
    from forerun.checkpoints.known_models import find_known  # slow to import

    known = None if model is None or find_named(model) is not None else find_known(model)
    if known is not None:
        print(json.dumps(_known_sheet(known))) if as_json else print_rows(_known_rows(known))
        return
    if model is not None and find_named(model) is None:
        raise ModelNotFoundError(f"no model has the name {model!r}: `forerun models` lists them")
    sheets = [_sheet(named) for named in _chosen(model)]
    if as_json:
        for sheet in sheets:
            print(json.dumps(sheet))
    elif model is not None:
        print_rows(_rows(sheets[0]))
    else:
        _print_table(sheets)
        _print_known()


def pull(
    model: Annotated[str, typer.Argument(help="Short name, as `forerun models` lists them, or hub name.")],
) -> None:
    """Fetch a model, unless it is here already. Exit code 5 if it cannot be fetched."""
    source = find_model_or_head(model)
    named = find_named(model)
    print_rows(_rows(_sheet(named)) if named is not None else [("model", model), ("here", str(source.folder))])


def _chosen(model: str | None) -> Sequence[NamedModel]:
    """One model; or all models in their default file types, and in other file types those on this machine."""
    if model is not None:
        return [named_models()[model.lower()]]
    others = {named.name: named for named in named_models().values()}
    for listed in listed_models():
        del others[listed.name]
    return [*listed_models(), *(named for named in others.values() if find_local(named) is not None)]


def _sheet(model: NamedModel) -> dict[str, Any]:
    found = find_local(model)
    num_bytes = model.num_bytes if found is None else found.num_bytes
    free = free_memory_bytes()
    return {
        "name": model.name,
        "full_name": model.full_name,
        "family": model.family,
        "num_parameters": model.num_parameters,
        "licence": model.licence,
        "licence_source": model.licence_source,
        "draft": model.draft,
        "gain": model.gain,
        "fits_memory": None if free is None else model.weights_bytes(num_bytes) * BESIDE_WEIGHTS < free,
        "path": None if found is None else str(found.path),
        "form": None if found is None else found.origin.form,
        "bytes": None if found is None else found.num_bytes,
        "origins": [{"origin": item.origin, "form": item.form, "bytes": item.num_bytes} for item in model.origins],
    }


def _print_table(sheets: Sequence[dict[str, Any]]) -> None:
    rows = [("model", "size", "licence", "draft", "")]
    for sheet in sheets:
        num_bytes = sheet["bytes"] or sheet["origins"][0]["bytes"]
        state = "here" if sheet["path"] is not None else ""
        if sheet["fits_memory"] is False:
            state = "here, too large" if state else "too large"
        rows.append((sheet["name"], gigabytes(num_bytes), sheet["licence"], sheet["draft"] or "", state))
    _print_columns(rows)
    free = free_memory_bytes()
    memory = (
        "" if free is None else f'{gigabytes(free)} of memory are free now; models that need more are "too large".\n'
    )
    print(
        f"\n{memory}`forerun pull MODEL` fetches a model; qwen2.5:7b-q8_0 names another file type;\n"
        "`forerun models MODEL` shows details; `--draft auto` uses the draft."
    )


def _print_known() -> None:
    """Print the known models that have no short name."""
    from forerun.checkpoints.known_models import find_known, known_models

    rows: list[Sequence[str]] = [("model", "size", "int4", "draft", "")]
    for known in filter(None, map(find_known, known_models())):
        if _short_name(known) is None:
            sizes = (gigabytes(num_bytes) for num_bytes in (known.bfloat16_bytes, known.int4_bytes))
            rows.append((known.name, *sizes, known.draft or "", "gated" if known.is_gated else ""))
    print()
    _print_columns(rows)
    print(
        "\nNo GGUF file of these is listed: `forerun pull MODEL` fetches safetensors, gated\n"
        "ones if the hub's account has accepted the licence;\n"
        "`forerun prepare MODEL --quantize awq` packs int4."
    )


def _short_name(known: "KnownModel") -> str | None:
    """The short name of a known model's GGUF file."""
    own_names = [repository.rpartition("/")[2] for repository in known.repositories]
    return next((model.name for model in listed_models() if model.full_name in own_names), None)


def _print_columns(rows: Sequence[Sequence[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _known_sheet(known: "KnownModel") -> dict[str, Any]:
    free = free_memory_bytes()
    num_bytes = known.bfloat16_bytes
    return {
        "name": known.name,
        "repositories": list(known.repositories),
        "family": known.spec.family,
        "num_parameters": known.spec.num_parameters,
        "gated": known.is_gated,
        "draft": known.draft,
        "fits_memory": None if free is None else num_bytes * BESIDE_WEIGHTS < free,
        "bytes": num_bytes,
        "int4_bytes": known.int4_bytes,
    }


def _known_rows(known: "KnownModel") -> list[tuple[str, str]]:
    sheet = _known_sheet(known)
    rows = [(known.name, f"{known.spec.family}, {count(known.spec.num_parameters)} parameters")]
    rows.append(("  size", f"{gigabytes(sheet['bytes'])} in bfloat16, {gigabytes(sheet['int4_bytes'])} in int4"))
    if sheet["fits_memory"] is False:
        rows.append(("  memory", "too large for the memory that is free now"))
    if known.draft is not None:
        rows.append(("  draft", f"{known.draft}, by --draft auto"))
    first, *others = known.repositories
    gate = "; gated: log in with an account that has accepted the licence" if known.is_gated else ""
    rows.append(("  from", f"https://huggingface.co/{first}, safetensors{gate}"))
    rows += [("  also", f"https://huggingface.co/{other}") for other in others]
    short = _short_name(known)
    packed = "no GGUF file is listed" if short is None else f"its GGUF file is listed as {short}"
    return [*rows, ("", f"`forerun pull {known.name}` fetches it; {packed}")]


def _rows(sheet: dict[str, Any]) -> list[tuple[str, str]]:
    what = f"{sheet['full_name']}, {sheet['family']}, {count(sheet['num_parameters'])} parameters"
    rows = [(sheet["name"], what), ("  licence", sheet["licence"]), ("", sheet["licence_source"])]
    if sheet["draft"] is not None:
        is_own = sheet["draft"] in KNOWN_DRAFTS.values()
        rows.append(("  draft", f"{sheet['draft']}, {'part of this package' if is_own else 'by --draft auto'}"))
    if sheet["gain"] is not None:
        rows.append(("  guesses", f"made {sheet['gain']} on all machines where this was measured"))
    if sheet["fits_memory"] is False:
        rows.append(("  memory", "too large for the memory that is free now"))
    if sheet["path"] is not None:
        return [*rows, ("  here", f"{sheet['form']}, {sheet['bytes'] / 1e6:.0f} MB"), ("", sheet["path"])]
    rows.append(("  not here", f"`forerun pull {sheet['name']}` fetches it"))
    for place, item in enumerate(sheet["origins"]):
        form = f"{item['form']}, {item['bytes'] / 1e6:.0f} MB"
        rows += [("  from" if not place else "  else", form), ("", item["origin"])]
    return rows
