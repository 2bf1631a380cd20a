"""Prometheus metrics of one engine, updated when a request ends and not in every round; and pages of several merged."""

from collections import Counter as Tally
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from forerun.core.steps import DecodeStep, DrafterState, Generation, PrefillStep, StepStats

SECONDS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0)
PREFIXES: Final = ("forerun", "vllm")  # also under vLLM's names where the meaning is the same, for tools made for vLLM
MAX_PLACE: Final = 32  # positions in a round that are counted separately
OF_PROCESS: Final = "process_"  # prefix of the metrics about the whole process


class TextTally:
    """Counts the tokens of one text. Only the engine's thread may use it until the text has ended.

    Args:
        num_prompt: number of prompt tokens.
    """

    def __init__(self, num_prompt: int) -> None:
        self._num_prompt = num_prompt
        self.num_read = self.num_reused = self.num_written = 0
        self.rounds: list[StepStats] = []

    def read(self, part: PrefillStep) -> None:
        """Count a part of the prompt that was read."""
        self.num_read = part.num_read
        self.num_reused = part.num_reused

    def write(self, step: DecodeStep) -> None:
        """Count a round. Tokens that were accepted past the end of the text are not counted."""
        num_new = len(step.token_ids)
        stats = step.stats
        self.num_read = self._num_prompt
        self.num_written += num_new
        self.rounds.append(stats if stats.num_accepted <= num_new else replace(stats, num_accepted=num_new))


class ServerMetrics:
    """All metrics of one server.

    Args:
        num_waiting, num_running, is_ready: called whenever the metrics are read.
    """

    def __init__(
        self, *, num_waiting: Callable[[], float], num_running: Callable[[], float], is_ready: Callable[[], float]
    ) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._gauge("num_requests_waiting", "Requests in the queue.", num_waiting)
        self._gauge("num_requests_running", "Requests that the engine works on.", num_running)
        self._gauge("ready", "1 if the last pass of the target worked.", is_ready)
        self._ended = self._counter("request_success", "Requests by the reason of their end.", "finished_reason")
        self._refused = self._counter("requests_refused", "Requests that were not admitted.", "code")
        self._prompt = self._counter("prompt_tokens", "Prompt tokens.")
        self._cached = self._counter("prompt_tokens_cached", "Prompt tokens that were not computed again.")
        self._written = self._counter("generation_tokens", "Tokens written.")
        self._queue_s = self._histogram("request_queue_time_seconds", "From the request to the engine.")
        self._first_s = self._histogram("time_to_first_token_seconds", "From the request to its first token.")
        self._prefill_s = self._histogram("request_prefill_time_seconds", "Reading the prompt.")
        self._decode_s = self._histogram("request_decode_time_seconds", "Writing the text.")
        self._whole_s = self._histogram("e2e_request_latency_seconds", "From the request to its last token.")
        self._token_s = self._histogram("request_time_per_output_token_seconds", "Writing a token, on average.")
        self._hits = self._counter("spec_decode_cache_hits", "Rounds whose bonus token the drafter had in its tree.")
        self._misses = self._counter("spec_decode_cache_misses", "Rounds whose bonus token the drafter did not have.")
        self._draft_s = self._counter("spec_decode_draft_seconds", "Seconds until proposals were ready.")
        self._verify_s = self._counter("spec_decode_verify_seconds", "Seconds of verification.")
        self._states = self._counter("spec_decode_rounds", "Rounds by the drafter's state.", "drafter_state")
        self._drafts = self._twice("drafts", "Rounds with a draft")
        self._drafted = self._twice("draft_tokens", "Drafted tokens")
        self._accepted = self._twice("accepted_tokens", "Accepted")
        self._places = self._twice("accepted_tokens_per_pos", "Accepted by place", "position")

    def page(self) -> bytes:
        """The metrics in Prometheus's text format."""
        lines = generate_latest(self.registry).splitlines(keepends=True)
        # Tools that search for vLLM's counters by part of the name would read the `_created` timestamps as counts.
        return b"".join(line for line in lines if b"_created" not in line)

    def refuse(self, code: str) -> None:
        """Count a refused request."""
        self._refused.labels(code).inc()

    def end(self, reason: str) -> None:
        """Count a finished request by the reason for its end."""
        self._ended.labels(reason).inc()

    def count(self, tally: TextTally, result: Generation | None, queue_s: float) -> None:
        """Add the token counts of a finished or cancelled text, and its times if it was finished."""
        self._prompt.inc(tally.num_read)
        self._cached.inc(tally.num_reused)
        self._written.inc(tally.num_written)
        self._draft_s.inc(sum(item.draft_s for item in tally.rounds))
        self._verify_s.inc(sum(item.verify_s for item in tally.rounds))
        self._count(tally.rounds)
        if result is None:
            return
        stats = result.stats
        self._queue_s.observe(queue_s)
        self._first_s.observe(queue_s + stats.first_token_s)
        self._prefill_s.observe(stats.prefill_s)
        self._decode_s.observe(stats.decode_s)
        self._whole_s.observe(queue_s + stats.prefill_s + stats.decode_s)
        self._token_s.observe(stats.decode_s / max(1, stats.num_new_tokens))

    def _count(self, rounds: Sequence[StepStats]) -> None:
        num_hits = sum(item.was_hit for item in rounds)
        self._hits.inc(num_hits)
        self._misses.inc(len(rounds) - num_hits)
        for state in DrafterState:
            self._states.labels(state.value).inc(sum(item.drafter is state for item in rounds))
        depths = Tally(min(item.num_accepted, MAX_PLACE) for item in rounds)
        for number in range(len(PREFIXES)):
            self._drafts[number].inc(sum(item.num_drafted > 0 for item in rounds))
            self._drafted[number].inc(sum(item.num_drafted for item in rounds))
            self._accepted[number].inc(sum(item.num_accepted for item in rounds))
            for place in range(max(depths, default=0)):
                reached = sum(count for depth, count in depths.items() if depth > place)
                self._places[number].labels(str(place)).inc(reached)

    def _counter(self, name: str, about: str, *labels: str, prefix: str = "forerun") -> Counter:
        return Counter(f"{prefix}:{name}", about, labels, registry=self.registry)

    def _twice(self, name: str, about: str, *labels: str) -> list[Counter]:
        """The same counter under each of the prefixes."""
        name = f"spec_decode_num_{name}"
        about = f"{about}, as vLLM counts them."
        return [self._counter(name, about, *labels, prefix=prefix) for prefix in PREFIXES]

    def _histogram(self, name: str, about: str) -> Histogram:
        return Histogram(f"forerun:{name}", about, registry=self.registry, buckets=SECONDS)

    def _gauge(self, name: str, about: str, read: Callable[[], float]) -> None:
        Gauge(f"forerun:{name}", about, registry=self.registry).set_function(read)


class Families(list[Metric]):
    """Metric families in a form that Prometheus's writer accepts as a registry."""

    def collect(self) -> Iterable[Metric]:
        return self


def merged(
    pages: Mapping[tuple[str, ...], str | None], *, labels: Sequence[str], is_one_process: bool = False
) -> bytes:
    """All pages merged into one: every metric family once, with the samples of all pages.

    Args:
        pages: one per replica or model, by the values of its labels; None if there was no answer.
        labels: their names; the first is "replica" or "model".
        is_one_process: all engines run in one process, so the metrics of the process are included only once.
    """
    kind = labels[0]
    up = GaugeMetricFamily(f"forerun:{kind}_up", f"1 if the {kind} answers.", labels=labels)
    families: dict[str, Metric] = {}
    for number, (values, page) in enumerate(pages.items()):
        up.add_metric(values, float(page is not None))
        own = dict(zip(labels, values, strict=True))
        for family in text_string_to_metric_families(page or ""):
            is_shared = is_one_process and family.name.startswith(OF_PROCESS)
            if is_shared and number:
                continue
            known = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            for sample in family.samples:
                known.add_sample(sample.name, sample.labels if is_shared else {**sample.labels, **own}, sample.value)
    return generate_latest(Families([*([] if is_one_process else [up]), *families.values()]))
