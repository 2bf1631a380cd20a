"""SWIFT's experiments (arXiv 2410.06916): self-drafting with skipped sublayers, its search, and its ablations."""

from dataclasses import dataclass, replace
from typing import Final

from forerun.core.drafter_config import LayerSkip, NoDrafter, paper_layer_skip
from forerun.core.errors import ConfigError
from forerun_lab.papers.experiments import Contest, Published, Variant

SETS: Final = ("swift_cnndm", "swift_gsm8k", "swift_tinystories")
ABSTRACT: Final = "1.3 to 1.6 over all models and sets (abstract)"
OTHER_RATIOS: Final = (0.3, 0.6)


@dataclass(frozen=True, slots=True, kw_only=True)
class SwiftModel:
    """A model of the paper.

    Args:
        repository: on the hub.
        skip_ratio: share of the sublayers that it skips.
        speedup: the paper's mean over data sets, where it is known.
        note: more of what is known.
    """

    name: str
    repository: str
    skip_ratio: float
    speedup: float | None = None
    note: str = ABSTRACT


MODELS: Final = (
    SwiftModel(
        name="llama2-13b",
        repository="meta-llama/Llama-2-13b-hf",
        skip_ratio=0.45,
        speedup=1.41,
        note="20.10 to 28.26 tokens/s on RTX A6000, as others quote the paper",
    ),
    SwiftModel(name="llama2-13b-chat", repository="meta-llama/Llama-2-13b-chat-hf", skip_ratio=0.45),
    SwiftModel(
        name="llama2-70b",
        repository="meta-llama/Llama-2-70b-hf",
        skip_ratio=0.5,
        speedup=1.48,
        note="4.32 to 6.41 tokens/s on RTX A6000, as others quote the paper",
    ),
    SwiftModel(name="codellama-13b", repository="codellama/CodeLlama-13b-hf", skip_ratio=0.45),
    SwiftModel(name="codellama-34b", repository="codellama/CodeLlama-34b-hf", skip_ratio=0.5),
)


def model_named(name: str) -> SwiftModel:
    """The model of this name, in any case.

    Raises:
        ConfigError: there is none.
    """
    for model in MODELS:
        if name.lower() == model.name:
            return model
    known = ", ".join(model.name for model in MODELS)
    raise ConfigError(f"no model of SWIFT's tables is named {name!r}: choose among {known}")


def contests(model: SwiftModel) -> tuple[Contest, ...]:
    """The main table, the paper's parts left out one by one, and other skip ratios."""
    paper = replace(paper_layer_skip(), skip_ratio=model.skip_ratio)
    none = Variant(label="none", words="plain decoding", drafter=NoDrafter())
    swift = Variant(
        label="swift",
        words=f"as in the paper, {100 * model.skip_ratio:.0f} % of the sublayers skipped",
        drafter=paper,
        published=Published(speedup=model.speedup, note=model.note),
    )
    table = Contest(
        name="table",
        title="Plain decoding, SWIFT as in its paper, and forerun's own self-drafting",
        source="measured",
        contestants=(
            none,
            swift,
            Variant(label="layer_skip", words="forerun's search, with lookup", drafter=LayerSkip()),
            Variant(
                label="layer_skip_int4",
                words="the same with a copy of the weights in 4 bits",
                drafter=LayerSkip(weights="int4"),
            ),
        ),
    )
    ablations = Contest(
        name="ablations",
        title="Parts of the paper's method left out or changed",
        source="measured",
        contestants=(
            none,
            swift,
            Variant(label="no_bayes", words="random search alone", drafter=replace(paper, bayes=False)),
            Variant(label="no_search", words="every other layer, no search", drafter=replace(paper, optimise=False)),
            Variant(
                label="no_confidence",
                words="drafts of 8 tokens, without the confidence stop",
                drafter=replace(paper, confidence=0.0, depth=8),
            ),
            Variant(
                label="no_tree",
                words="a chain, without further candidates",
                drafter=replace(paper, siblings=False),
            ),
            *(
                Variant(
                    label=f"ratio_{ratio:g}",
                    words=f"{100 * ratio:.0f} % of the sublayers skipped",
                    drafter=replace(paper, skip_ratio=ratio),
                )
                for ratio in OTHER_RATIOS
            ),
        ),
    )
    return table, ablations


def searches(model: SwiftModel) -> dict[str, LayerSkip]:
    """The searches whose course is recorded, by what they are."""
    paper = replace(paper_layer_skip(), skip_ratio=model.skip_ratio)
    return {"with Bayesian steps": paper, "random alone": replace(paper, bayes=False)}
