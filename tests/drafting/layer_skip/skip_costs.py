"""What passes cost on a machine that is made up, so that a drafter adapts to it without a clock."""

from forerun.core.pace import Pace
from forerun.decoding.drafters import Drafters
from forerun.drafting.layer_skip.drafter import LayerSkipDrafter
from forerun.drafting.layer_skip.speed_model import SkipCosts
from forerun.speculation.referee.costs import RoundCosts
from forerun.speculation.referee.referee import Referee

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


def adapt_to_slow_passes(drafter: LayerSkipDrafter) -> Drafters:
    """The drafter at work where passes take so long that nothing else counts, and draft passes a tenth of it."""
    pass_s = 10.0
    return adapted(drafter, flat_pace(pass_s), made_up_costs(drafter.runner.spec.num_layers, pass_s / 10))


def adapted(drafter: LayerSkipDrafter, target: Pace, costs: SkipCosts) -> Drafters:
    """The drafter at work, with these costs if it asks for any."""
    is_adaptive = drafter._config.adaptive
    own = drafter.take_costs(target, costs) if is_adaptive or drafter.needs_costs else None
    drafters = Drafters({"layer_skip": drafter}, is_adaptive=is_adaptive)
    if is_adaptive and own is not None:
        round_costs = RoundCosts(target, own.round_overhead_s)
        drafters.referee = Referee({"layer_skip": drafter.verify_width}, round_costs, own={"layer_skip": own})
    return drafters
