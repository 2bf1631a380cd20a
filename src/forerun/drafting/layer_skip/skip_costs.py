"""What a pass of a model costs when some of its sublayers are left out."""

from dataclasses import dataclass

from forerun.core.pace import Pace
from forerun.core.sublayers import ATTENTION, SkipSet


@dataclass(frozen=True, slots=True, kw_only=True)
class SkipCosts:
    """Seconds of draft passes by what they skip; layers of a model are alike, so that only the kind counts.

    Args:
        whole: seconds of a draft pass with every sublayer, by its rows.
        attention_s: what one attention sublayer takes of a pass of one row, at `context`.
        mlp_s: what one MLP takes of it.
        context: tokens before the rows when this was measured.
        attention_slope_s: by how much one attention sublayer takes longer for each further token before the rows.
        num_layers: of the model.
    """

    whole: Pace
    attention_s: float
    mlp_s: float
    context: int
    attention_slope_s: float
    num_layers: int

    def attention_at(self, context: int) -> float:
        """Seconds of one attention sublayer with so many tokens before it."""
        return max(0.0, self.attention_s + self.attention_slope_s * (context - self.context))

    def whole_at(self, context: int) -> float:
        """Seconds of a pass of one row with every sublayer."""
        return self.whole.step_s(1) + self.num_layers * (self.attention_at(context) - self.attention_s)

    def draft_s(self, num_attention: int, num_mlp: int, context: int) -> float:
        """Seconds of a pass of one row that skips so many sublayers of each kind; never below a hundredth of a pass."""
        whole_s = self.whole_at(context)
        return max(whole_s / 100, whole_s - num_attention * self.attention_at(context) - num_mlp * self.mlp_s)

    def draft(self, skipped: SkipSet, context: int) -> Pace:
        """The pace of draft passes that skip these; more rows cost as much more as they do in a whole pass."""
        num_attention = sum(kind == ATTENTION for _, kind in skipped)
        share = self.draft_s(num_attention, len(skipped) - num_attention, context) / self.whole.step_s(1)
        return Pace(steps=tuple((rows, seconds * share) for rows, seconds in self.whole.steps))
