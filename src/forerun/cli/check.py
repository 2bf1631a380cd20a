"""forerun check: do a target and a draft fit together?"""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from forerun.cli.failures import INCOMPATIBLE, find_model, find_model_or_head
from forerun.cli.flags import option
from forerun.cli.head_sheet import head_fault, head_rows, head_to_dict
from forerun.cli.model_sheet import ModelSheet, count, print_rows, read_sheet
from forerun.core.errors import CheckpointError
from forerun.drafting.heads.kind import StoredHead
from forerun.drafting.heads.stored import find_head
from forerun.speculation.referee.costs import LEAST_RATIO

if TYPE_CHECKING:
    from forerun.checkpoints.source import CheckpointSource
    from forerun.text.vocabulary import Vocabulary, VocabularyMatch

MAX_LISTED: Final = 5


def check(
    target: Annotated[str, typer.Argument(help="The target model.")],
    draft: Annotated[str, typer.Argument(help="The smaller model, or the head, that drafts.")],
    as_json: Annotated[bool, option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Tell whether a draft model or a draft head fits a target. Exit code 3 if they do not fit together."""
    from forerun.text.vocabulary import Fit, compare_vocabularies

    sources = [find_model(target), find_model_or_head(draft)]
    head = find_head(sources[1])
    if head is not None:
        _check_head(head, sources[0], as_json=as_json)
        return
    sheets = [read_sheet(source) for source in sources]
    match = compare_vocabularies(*map(_vocabulary, sources, sheets))
    fault = _map_fault(sheets)
    fit = match.fit if fault is None and all(sheet.problem is None for sheet in sheets) else Fit.NONE
    why = fault if match.fit is Fit.WHOLE else match.explain(target_name=target, draft_name=draft)
    if as_json:
        print(json.dumps(_to_dict(sheets, match) | {"fits": fit is not Fit.NONE, "why": why}))
    else:
        print_rows([("fits", fit.value), *([] if why is None else [("why", why)]), *_rows(sheets, match)])
    if fit is Fit.NONE:
        raise typer.Exit(INCOMPATIBLE)


def _check_head(head: StoredHead, source: "CheckpointSource", *, as_json: bool) -> None:
    """Print whether a draft head was made for a target of these sizes. It uses the target's tokenizer, so no
    vocabularies are compared."""
    target = source.spec()
    why = head_fault(head, target, source.name)
    ratio = target.num_parameters / head.num_parameters
    if as_json:
        print(json.dumps(head_to_dict(head) | {"fits": why is None, "why": why, "size_ratio": ratio}))
    else:
        rows = [("fits", "yes" if why is None else "no"), *([] if why is None else [("why", why)])]
        rows += [("target", f"{source.name}, {count(target.num_parameters)} parameters"), *head_rows(head, ())]
        print_rows([*rows, ("size ratio", f"{ratio:.1f}")])
    if why is not None:
        raise typer.Exit(INCOMPATIBLE)


def _vocabulary(source: "CheckpointSource", sheet: ModelSheet) -> "Vocabulary":
    """A model's vocabulary.

    Raises:
        CheckpointError: it cannot be read; if something else is wrong too, such as config.json, the error names that.
    """
    from forerun.text.vocabulary import Vocabulary

    try:
        return Vocabulary.of(source.tokenizer())
    except CheckpointError as error:
        raise CheckpointError(sheet.problem or str(error)) from error


def _map_fault(sheets: list[ModelSheet]) -> str | None:
    """The reason if a draft with a part of its target's tokens was made for another target, else None."""
    from forerun.text.vocabulary import find_map_fault

    target, draft = sheets
    if target.spec is None or draft.num_target_ids is None:
        return None
    return find_map_fault(draft.num_target_ids, target.spec.vocab_size, target_name=target.name, draft_name=draft.name)


def _ratio(sheets: list[ModelSheet]) -> float | None:
    """How many times larger the target is, in parameters."""
    target, draft = (sheet.spec for sheet in sheets)
    return None if target is None or draft is None else target.num_parameters / draft.num_parameters


def _to_dict(sheets: list[ModelSheet], match: "VocabularyMatch") -> dict[str, Any]:
    return {
        "problems": [sheet.problem for sheet in sheets if sheet.problem is not None],
        "size_ratio": _ratio(sheets),
        "num_drafted_ids": _num_proposed(sheets[1]),
        "num_shared": match.num_shared,
        "num_trained": match.num_trained,
        "num_trained_unequal": match.num_trained_unequal,
        "num_differences": len(match.differences),
        "num_only_in_target": len(match.only_in_target),
        "num_only_in_draft": len(match.only_in_draft),
        "first_differences": [asdict(entry) for entry in match.unequal[:MAX_LISTED]],
    }


def _rows(sheets: list[ModelSheet], match: "VocabularyMatch") -> list[tuple[str, str]]:
    rows = []
    for role, sheet in zip(("target", "draft"), sheets, strict=True):
        parameters = "unknown size" if sheet.spec is None else f"{count(sheet.spec.num_parameters)} parameters"
        rows.append((role, f"{sheet.name}, {parameters}"))
        if sheet.problem is not None:
            rows.append(("", f"cannot run: {sheet.problem}"))
    ratio = _ratio(sheets)
    if ratio is not None:
        is_small = ratio >= LEAST_RATIO
        advice = (
            ""
            if is_small
            else " (8 to 50 times smaller is usual; whether this pair gains, `forerun bench run` measures)"
        )
        rows.append(("size ratio", f"{ratio:.1f}{advice}"))
    num_proposed = _num_proposed(sheets[1])
    num_all = sheets[1].num_target_ids
    if num_all is not None:
        rows.append(("tokens drafted", f"{num_proposed} of {num_all}: the draft can propose no others"))
    rows.append(("tokens shared", str(match.num_shared)))
    rows.append(("tokens differing", str(len(match.differences))))
    rows.append(("only in target", str(len(match.only_in_target))))
    rows.append(("only in draft", str(len(match.only_in_draft))))
    return rows + [
        (f"  id {entry.token_id}", f"target {entry.target_token!r}, draft {entry.draft_token!r}")
        for entry in match.unequal[:MAX_LISTED]
    ]


def _num_proposed(draft: ModelSheet) -> int | None:
    """The tokens that the draft can propose."""
    return None if draft.spec is None else draft.spec.vocab_size
