"""The metrics of several engines merged into one Prometheus page, with a label for each engine."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from prometheus_client import generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

OF_PROCESS: Final = "process_"  # prefix of the metrics about the whole process


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
