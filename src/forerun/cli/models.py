"""forerun models and forerun pull: models by short name, what of them is here, and how they get here."""

import json
from typing import Annotated, Any

import typer

from forerun.checkpoints.short_names.catalogue import NAMED_MODELS, NamedModel
from forerun.checkpoints.short_names.local import find_local
from forerun.cli.declare import option
from forerun.cli.failures import find_model, shows_errors
from forerun.cli.sheet import count, print_rows


@shows_errors
def models(as_json: Annotated[bool, option("--json", help="Print one JSON object a model.")] = False) -> None:
    """List the models that have a short name: what is on this machine, where, and under which licence."""
    sheets = [_sheet(model) for model in NAMED_MODELS.values()]
    for place, sheet in enumerate(sheets):
        if as_json:
            print(json.dumps(sheet))
        else:
            print("" if place == 0 else "\n", end="")
            print_rows(_rows(sheet))


@shows_errors
def pull(
    model: Annotated[str, typer.Argument(help="Short name, as `forerun models` lists them, or hub name.")],
) -> None:
    """Fetch a model, unless it is here already. Exit code 5 where it cannot be had."""
    source = find_model(model)
    named = NAMED_MODELS.get(model)
    print_rows(_rows(_sheet(named)) if named is not None else [("model", model), ("here", str(source.folder))])


def _sheet(model: NamedModel) -> dict[str, Any]:
    found = find_local(model)
    return {
        "name": model.name,
        "full_name": model.full_name,
        "family": model.family,
        "num_parameters": model.num_parameters,
        "licence": model.licence,
        "licence_source": model.licence_source,
        "draft": model.draft,
        "path": None if found is None else str(found.path),
        "form": None if found is None else found.origin.form,
        "bytes": None if found is None else found.num_bytes,
        "origins": [{"origin": item.origin, "form": item.form, "bytes": item.num_bytes} for item in model.origins],
    }


def _rows(sheet: dict[str, Any]) -> list[tuple[str, str]]:
    what = f"{sheet['full_name']}, {sheet['family']}, {count(sheet['num_parameters'])} parameters"
    rows = [(sheet["name"], what), ("  licence", sheet["licence"]), ("", sheet["licence_source"])]
    if sheet["draft"] is not None:
        rows.append(("  draft", f"{sheet['draft']}, part of this package"))
    if sheet["path"] is not None:
        return [*rows, ("  here", f"{sheet['form']}, {sheet['bytes'] / 1e6:.0f} MB"), ("", sheet["path"])]
    rows.append(("  not here", f"`forerun pull {sheet['name']}` fetches it"))
    for place, item in enumerate(sheet["origins"]):
        form = f"{item['form']}, {item['bytes'] / 1e6:.0f} MB"
        rows += [("  from" if not place else "  else", form), ("", item["origin"])]
    return rows
