"""Tuned numbers of the search for sublayers to skip."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSettings:
    """Constants of the search.

    Origin: numbers of rows, shares and deviations were chosen on emulators fitted to the random candidates of two
    published SWIFT runs (skip_emulator.py among the tests). Seconds, shares of a pass and numbers of rounds were chosen
    on the built-in target and a random model of 125M, on two Zen 5 cores (docs/log.md, 2026-11-22).
    A row is one guess compared with the text. 32 rows are one evaluation, the size of SWIFT's window.

    Args:
        whole_logit: prior log-odds that a guess of the whole model is correct.
        whole_deviation: standard deviation of that prior.
        whole_penalty: log-odds lost if all is skipped; from hit rates of 0.40 at 45 % of 13B and 0.26 at 50 % of 70B.
        penalty_spread: standard deviation of a sublayer's penalty as a share of its mean.
        outer_penalty: penalty of the first and the last layer as a multiple of a middle layer's.
        discount: factor on the weight of older evidence per hundred evaluations.
        rows_alike: rows of one set that say as much about other sets as all its later rows.
        least_penalty: lower bound on a sublayer's penalty, in log-odds; lower estimates are due to chance.
        pool_size: sets with a separate record.
        num_kept: sets of the pool that were used for earlier texts and are kept for similar ones.
        comparable_rows: rows of a set before it can be compared with another.
        record_memory: limit on a set's record, in rows.
        unexplained: standard deviation, in log-odds, of sets from the sum of their penalties.
        most_prior_rows: limit on the rows that the model's prior of a set counts as.
        ageing: discount of every record per evaluation, since texts also change undetected.
        known_rows: limit on the rows that the record of an earlier session counts as.
        caution: a set that is not in use is rated this many standard deviations below its mean.
        hope: a challenger stays one while it matches the set in use at this many standard deviations above its mean.
        margin: required speed of a challenger as a multiple of the set in use.
        judged_every: rows between two comparisons.
        most_random: limit on the share of sublayers that a random candidate skips.
        request_sets, request_rows: best sets scored first when a request begins, and rows for each.
        stable: evaluations without a gain after which the search has converged.
        longest: evaluations after which the search ends in any case.
        gain: least ratio of a new set's speed to the old one's that counts as a gain.
        settled_share: share of the scoring that continues after the search has converged.
        recent_rows: memory, in rows, of the recent hit rate of the set in use.
        fall_recent, fall_past: memory, in rows, of the two hit rates that are compared.
        fall_least: least rows of either for a comparison.
        fall_deviations: standard deviations by which the recent rate must be lower to count as a change of text.
        overdispersion: variance of hits relative to independent hits, since texts have easy and hard passages.
        draft_rows: limit on the rows of a set's record that its drafts are first compared with.
        forgotten: discount of the evidence on penalties when the text has changed.
        begin_margin: least speed relative to plain decoding, by a pessimistic estimate, at which drafting begins.
        context_step: tokens of context growth before drafting is reassessed.
        chain: rows per scoring of a candidate, which are the first steps of a draft.
        most_probe_rows: limit on the rows added to a pass.
        probe_s: fixed seconds that probe rows take in addition to their pass.
        trial_margin: expected speed relative to plain decoding at which a draft is tried, within `trial_overhead`.
            It is below 1 because drafts stop early when their confidence is low.
        trial_overhead: limit for such a trial on a round's time in addition to its passes, as a share of a pass.
        passes_saved: limit on unused search time that is saved for later, in passes.
        early_s: seconds of searching while the engine opens, if no set is known.
        rest_rounds: consecutive plain rounds before the next check, which costs 1 % of a small model's round.
        plain_rise: cap on a plain round's time relative to its recent time, since other load only adds time.
        costs_every: drafting rounds between updates of overheads and of costs at the current context.
        round_s, expansion_s: initial seconds of a drafting round and of an expansion in addition to their passes.
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
