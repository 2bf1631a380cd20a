"""What passes cost on a machine that is made up, so that a drafter adapts to it without a clock."""

from forerun.core.pace import Pace
from forerun.drafting.layer_skip.drafter import LayerSkipDrafter
from forerun.drafting.layer_skip.speed_model import SkipCosts

ROWS = (1, 2, 4, 8, 16, 32, 64)


def flat_pace(seconds: float) -> Pace:
    """A pass of any width takes so long."""
    return Pace(steps=tuple((rows, seconds * (1 + rows / 1e6)) for rows in ROWS))


def made_up_costs(num_layers: int, pass_s: float = 0.1) -> SkipCosts:
    """Sublayers take nine tenths of a pass, all alike."""
    part_s = 0.9 * pass_s / (2 * num_layers)
    return SkipCosts(
        whole=flat_pace(pass_s), attention_s=part_s, mlp_s=part_s, context=0, attention_slope_s=0.0,
        num_layers=num_layers,
    )  # fmt: skip


def adapt_to_slow_passes(drafter: LayerSkipDrafter) -> None:
    """Passes take so long that nothing else counts, and draft passes a tenth of it, so that drafting pays."""
    pass_s = 10.0
    drafter.take_costs(flat_pace(pass_s), made_up_costs(drafter.runner.spec.num_layers, pass_s / 10))
