"""Tuned numbers of the search for sublayers to skip."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSettings:
    """What the search takes for granted.

    Origin: numbers of rows, shares and deviations were chosen on emulators fitted to the random candidates of two
    published SWIFT runs (skip_emulator.py among the tests); seconds, shares of a pass and numbers of rounds on the
    built-in target and a random one of 125M, on two Zen 5 cores (docs/log.md, 2026-11-22).
    A row is one guess compared with the text. 32 rows are an evaluation, as a window of SWIFT's has them.

    Args:
        whole_logit: log-odds that a guess of the whole model is right: nearly always.
        whole_deviation: of that belief.
        whole_penalty: log-odds lost when all is skipped; from 0.40 hits at 45 % of 13B and 0.26 at 50 % of 70B.
        penalty_spread: deviation of a sublayer's penalty as a share of its mean.
        outer_penalty: how many times the penalty of a middle layer the first and the last one are given.
        discount: what a hundred evaluations leave of the weight of those before them.
        rows_alike: rows of one set that say as much about other sets as all that follow.
        least_penalty: log-odds that skipping a sublayer costs at least: luck that makes it look better does not last.
        pool_size: sets with a record of their own.
        num_kept: sets in it that served other texts and may do so again.
        comparable_rows: of a set before it can be compared with another.
        record_memory: rows after which a set's record forgets.
        unexplained: deviation, in log-odds, of what sets are from the sum of their penalties.
        most_prior_rows: rows that the model's word on a set counts as, at most.
        ageing: share of every record given up with an evaluation, since texts change unnoticed too.
        known_rows: rows that the record of an earlier session counts as, at most.
        caution: deviations below its mean at which a set that is not in use is judged.
        hope: deviations above its mean at which a challenger must still match the set in use.
        margin: how many times as fast as the set in use a challenger must be.
        judged_every: rows between two judgements.
        most_random: share of the sublayers that a random candidate skips, at most.
        request_sets, request_rows: when a request begins, so many of the best sets are scored at so many rows first.
        stable: evaluations without a gain after which the search has settled.
        longest: evaluations after which it has, whatever happens.
        gain: how many times as fast another set must be to count as one.
        settled_share: of the scoring, once the search has settled.
        recent_rows: by which the set in use is said to do well or badly.
        fall_recent, fall_past: rows after which the two shares of hits forget that are held against each other.
        fall_least: rows of either before anything is said.
        fall_deviations: by so many the recent share must lie lower for the text to count as another one.
        overdispersion: variance of hits over that of independent ones: texts have easy and hard stretches.
        draft_rows: of a set's record that its drafts are first held against.
        forgotten: share of what is known of penalties that is given up when the text turns out to be another.
        begin_margin: how many times as fast as plain decoding drafting must surely be to begin.
        context_step: tokens by which a context must grow before drafting is weighed anew.
        chain: rows that score a candidate at a time, the first steps of a draft.
        most_probe_rows: added to a pass.
        probe_s: seconds that probe rows take beside their pass, however few.
        trial_margin: times plain speed at which a draft is tried, since drafts stop where they are unsure ...
        trial_overhead: ... as long as a round takes less than this share of a pass beyond its passes.
        passes_saved: seconds in passes for which searching can be saved up.
        early_s: seconds of searching while the engine opens, where no set is known.
        rest_rounds: plain rounds in a row where nothing is drafted; to ask costs a hundredth of one of a small model.
        plain_rise: times its time of late that a plain round counts as, at most: others on the machine only add time.
        costs_every: drafting rounds after which costs are reckoned anew: overheads, and the context has grown.
        round_s, expansion_s: of a drafting round and of an expansion beyond their passes, until that is measured.
    """

    whole_logit: float = 4.5
    whole_deviation: float = 0.7
    whole_penalty: float = 11.0
    penalty_spread: float = 1.6
    outer_penalty: float = 3.0
    discount: float = 0.98
    rows_alike: float = 48.0
    least_penalty: float = 0.005
    pool_size: int = 8
    num_kept: int = 4
    comparable_rows: float = 32.0
    record_memory: float = 4096.0
    unexplained: float = 0.5
    most_prior_rows: float = 24.0
    ageing: float = 0.001
    known_rows: float = 256.0
    caution: float = 1.0
    hope: float = 0.25
    margin: float = 1.005
    judged_every: float = 32.0
    most_random: float = 0.7
    request_sets: int = 4
    request_rows: float = 8.0
    stable: int = 100
    longest: int = 1000
    gain: float = 1.02
    settled_share: float = 0.15
    recent_rows: float = 512.0
    fall_recent: float = 64.0
    fall_past: float = 2048.0
    fall_least: float = 32.0
    fall_deviations: float = 3.0
    overdispersion: float = 1.5
    draft_rows: float = 64.0
    forgotten: float = 0.95
    begin_margin: float = 1.03
    context_step: int = 64
    chain: int = 4
    most_probe_rows: int = 16
    probe_s: float = 0.5e-3
    trial_margin: float = 0.9
    trial_overhead: float = 0.1
    passes_saved: float = 1.0
    early_s: float = 0.4
    rest_rounds: int = 16
    plain_rise: float = 1.1
    costs_every: int = 64
    round_s: float = 0.3e-3
    expansion_s: float = 0.06e-3


ROWS_PER_EVALUATION: Final = 32
TUNED: Final = SearchSettings()
