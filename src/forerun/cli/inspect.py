"""forerun inspect: a checkpoint's architecture, its memory, and whether it runs."""

import json
from typing import Annotated

import typer

from forerun.checkpoints.safetensors.header import ITEM_BYTES
from forerun.cli.failures import INCOMPATIBLE, find_model_or_head
from forerun.cli.flags import option
from forerun.cli.head_sheet import head_rows, head_to_dict
from forerun.cli.model_sheet import ModelSheet, count, file_rows, print_rows, read_sheet, size
from forerun.cli.rank_sheet import rank_rows, rank_sheets
from forerun.cli.template_sheet import template_rows
from forerun.core.mixers import GatedDeltaNet, Mamba2, ShortConvolution
from forerun.core.model_spec import ModelSpec
from forerun.drafting.heads.stored import find_head


def inspect(
    model: Annotated[str, typer.Argument(help="Checkpoint folder, GGUF file, hub name, or a model of known size.")],
    ranks: Annotated[
        int | None, option("--ranks", help="Also show how this many processes would share the model.")
    ] = None,
    as_json: Annotated[bool, option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show a checkpoint's architecture, memory, chat template and files. Exit code 3 if it cannot run."""
    from forerun.checkpoints.known_models import find_known  # slow to import

    known = None if "/" in model else find_known(model)  # the files of a hub name say more
    if known is not None:
        sheet = ModelSheet(name=known.name, spec=known.spec, dtype="bfloat16")  # as they are published
    else:
        source = find_model_or_head(model)
        head = find_head(source)
        if head is not None:
            print(json.dumps(head_to_dict(head))) if as_json else print_rows(head_rows(head, source.files()))
            return
        sheet = read_sheet(source)
    shares = [] if ranks is None or sheet.spec is None else rank_sheets(sheet.spec, ranks, sheet.element_bytes)
    if as_json:
        print(json.dumps(sheet.to_dict() | ({} if ranks is None else {"ranks": shares})))
    else:
        print_rows(_rows(sheet) + rank_rows(shares))
    if sheet.problem is not None:
        raise typer.Exit(INCOMPATIBLE)


def _rows(sheet: ModelSheet) -> list[tuple[str, str]]:
    rows = [("model", sheet.name), ("folder", str(sheet.folder or "none: its sizes are known"))]
    rows.append(("supported", "yes" if sheet.problem is None else f"no: {sheet.problem}"))
    if sheet.spec is not None:
        rows += _architecture_rows(sheet)
    if sheet.stored_dtype is None and sheet.folder is not None:
        return rows + file_rows(sheet.files)  # damaged: nothing else is known
    if sheet.folder is not None:
        problem = "" if sheet.template_problem is None else f", but {sheet.template_problem}"
        rows.append(("chat template", f"yes{problem}" if sheet.has_chat_template else "no"))
        rows += [] if sheet.traits is None else template_rows(sheet.traits)
        if sheet.draft_head is not None:
            rows.append(("draft head", f"{sheet.draft_head}: `auto` drafts with it"))
        rows.append(("stored", f"{size(sheet.stored_bytes)} in {_stored_in(sheet)}"))
    rows += [
        ("loaded", f"{size(sheet.weights_bytes)}, computed in {sheet.dtype or 'an unknown dtype'} by --dtype auto"),
        ("cache per token", in_both(sheet.kv_bytes_per_token, sheet.int8_kv_bytes_per_token)),
        *_state_rows(sheet),
        ("at full length", in_both(sheet.bytes_at_max_length, sheet.int8_bytes_at_max_length)),
    ]
    return rows + file_rows(sheet.files)


def in_both(num_bytes: int | None, with_int8: int | None) -> str:
    """A size that depends on the format of the cache."""
    return size(num_bytes) if num_bytes is None else f"{size(num_bytes)}; {size(with_int8)} with --cache int8"


def _state_rows(sheet: ModelSheet) -> list[tuple[str, str]]:
    """What layers without attention keep."""
    if not sheet.state_bytes:
        return []
    saved = size(sheet.snapshot_bytes)
    return [("states", f"{size(sheet.state_bytes)}, however long the text is; {saved} more wherever a text is saved")]


def _stored_in(sheet: ModelSheet) -> str:
    formats = sorted(sheet.stored_formats.items(), key=lambda entry: -entry[1])
    if all(name in ITEM_BYTES for name, _ in formats):
        return sheet.stored_dtype or "an unknown dtype"
    return ", ".join(f"{name} ({size(num_bytes)})" for name, num_bytes in formats)


def of_layers(spec: ModelSpec) -> str:
    """How many layers have a mixer in place of attention, in words."""
    match spec.mixer:
        case None:
            return ""
        case ShortConvolution():
            kind = "short convolutions"
        case GatedDeltaNet():
            kind = "gated delta nets"
        case Mamba2():
            kind = "Mamba 2"
    return f", {len(spec.mixer_layers)} of them {kind}"


def _architecture_rows(sheet: ModelSheet) -> list[tuple[str, str]]:
    spec = sheet.spec
    assert spec is not None, "rows of a spec that could not be read"
    heads = f"{spec.num_heads} of {spec.head_dim}, {spec.num_kv_heads} for keys and values"
    rope = f"{spec.rope.kind}, theta {spec.rope.theta:g}"
    part = "" if sheet.num_target_ids is None else f", a part of its target's {sheet.num_target_ids}"
    return [
        ("family", spec.family),
        ("parameters", count(spec.num_parameters)),
        ("layers", f"{spec.num_layers}{of_layers(spec)}"),
        ("hidden size", f"{spec.hidden_size}, {spec.intermediate_size} in the MLP"),
        ("heads", heads),
        ("vocabulary", f"{spec.vocab_size} rows{', shared with the head' if spec.tied_embeddings else ''}{part}"),
        ("positions", f"{spec.max_positions}{'' if spec.window is None else ', the attention window'} ({rope})"),
    ]
