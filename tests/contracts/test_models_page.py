"""docs/models.md is what the plans give; run as a program, this file rewrites it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from forerun.checkpoints.known_models import known_models
from forerun.core.model_spec import ModelSpec
from forerun.sharding.plan import plan_shards
from forerun_lab.planner.roofline import SizedModel
from tests.contracts.written_page import WrittenPage, table_rows

ROOT = Path(__file__).resolve().parents[2]
SPLITS = ROOT / "benchmarks" / "results" / "paper_splits_8gpus_202611.md"
DIVIDED_RANKS = (2, 3, 4, 6, 8)
SHOWN_RANKS = (1, 2, 4, 6, 8)
Cells = Callable[[str, ModelSpec], Sequence[object]]


def reference() -> str:
    return "\n".join(part for section in (sizes(), shares(), memory(), splits()) for part in section)


def sizes() -> Iterator[str]:
    yield "## Sizes\n"
    head = ("model", "family", "weights", "layers", "hidden", "heads", "kv heads", "of", "MLP", "vocabulary", "head")

    def cells(name: str, spec: ModelSpec) -> Sequence[object]:
        sizes = (spec.num_layers, spec.hidden_size, spec.num_heads, spec.num_kv_heads, spec.head_dim)
        head = "the embedding" if spec.tied_embeddings else "its own"
        return spec.family, f"{spec.num_parameters:,}", *sizes, spec.intermediate_size, spec.vocab_size, head

    yield table(head, cells)


def shares() -> Iterator[str]:
    yield "## Shares\n"
    yield (
        "For each number of ranks, the part of one rank, padding included: query heads / copies of key and value\n"
        "heads / features of the MLP; and how much padding and copies add to the weights of all layers together.\n"
        "`forerun inspect NAME --ranks N` shows any other number.\n"
    )

    def cells(name: str, spec: ModelSpec) -> Sequence[object]:
        model = SizedModel(name=name, spec=spec, weight_bits=16)
        return [share(model, num_ranks) for num_ranks in DIVIDED_RANKS]

    yield table(("model", *DIVIDED_RANKS), cells)


def share(model: SizedModel, num_ranks: int) -> str:
    plan = plan_shards(model.spec, num_ranks)[0]
    added = num_ranks * model.layer_weights(num_ranks) / model.layer_weights() - 1.0
    text = f"{plan.heads.size} / {plan.kv_heads.size} / {plan.intermediate.size}"
    return f"{text}, +{added:.1%}".replace("%", " %") if added >= 5e-4 else text


def memory() -> Iterator[str]:
    yield "## Memory\n"
    yield "GB of weights on each rank, by format and number of ranks, and KB of cache per token on a single rank.\n"

    def cells(name: str, spec: ModelSpec) -> Sequence[object]:
        models = [SizedModel(name=name, spec=spec, weight_bits=bits) for bits in (16, 4)]
        held = [f"{model.stored_bytes(ranks) / 1e9:.2f}" for model in models for ranks in SHOWN_RANKS]
        return *held, f"{models[0].cache_bytes(1) / 1e3:.0f}"

    kinds = [f"{kind} {ranks}" for kind in ("bf16:", "int4:") for ranks in SHOWN_RANKS]
    yield table(("model", *kinds, "KB a token"), cells)


def table(head: Sequence[object], cells: Cells) -> str:
    """A line for each model; models with the same cells share one."""
    names: dict[tuple[object, ...], list[str]] = {}
    for name, spec in known_models().items():
        names.setdefault(tuple(cells(name, spec)), []).append(name)
    return rows(head, [(", ".join(same), *line) for line, same in names.items()])


def rows(head: Sequence[object], lines: Sequence[Sequence[object]]) -> str:
    shown = [head, ["---"] * len(head), *lines]
    return "".join("| " + " | ".join(map(str, line)) + " |\n" for line in shown)


def splits() -> Iterator[str]:
    """What `forerun bench paper` printed at the published acceptance length; a slow test compares it with what `forerun
    plan` prints."""
    yield "## Splits of eight GPUs\n"
    found: dict[str, dict[str, Mapping[str, str]]] = {}
    for row in table_rows(SPLITS):
        machine, _, accepted = row["heading"].partition(", ")
        if accepted == "3.63 accepted":
            found.setdefault(row["pair"], {})[machine] = row
    lines = []
    for pair, by_machine in found.items():
        target, _, draft = pair.partition(" with ")
        best = [best_of(row) for row in by_machine.values()]
        fitted = next(iter(by_machine.values()))
        units = [int(number) for number in best[0].partition(":")[0].split("+")]
        held = [held_gb(name, number) for name, number in zip((target, draft), units, strict=True)]
        lines.append((target, draft, fitted["the paper"], *best, " + ".join(held)))
    machines = list(next(iter(found.values())))
    yield rows(("target", "draft", "SwiftSpec", *machines, f"GB a GPU, {machines[0]}"), lines)


def best_of(row: Mapping[str, str]) -> str:
    split = row["the planner's choice"]
    return f"{split}: {row[split]}"


def held_gb(name: str, units: int) -> str:
    return f"{SizedModel(name=name, spec=known_models()[name]).stored_bytes(units) / 1e9:.1f}"


PAGE = WrittenPage(name="models.md", module="test_models_page", reference=reference)


def test_the_page_of_models_is_that_of_the_plans() -> None:
    PAGE.require_up_to_date()


if __name__ == "__main__":
    PAGE.write()
