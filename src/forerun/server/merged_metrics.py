"""The metrics of several engines merged into one Prometheus page, with a label for each engine."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from prometheus_client import generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

REPLICA: Final = "replica"
OF_PROCESS: Final = "process_"  # prefix of the metrics about the whole process


class Families(list[Metric]):
    """Metric families that Prometheus's writer takes for a registry."""

    def collect(self) -> Iterable[Metric]:
        return self


def merged(pages: Mapping[Any, str | None], *, label: str = REPLICA, is_one_process: bool = False) -> bytes:
    """All pages merged into one: every metric family once, with the samples of all pages.

    Args:
        pages: one per replica or model; None where there was no answer.
        label: name of the label, "replica" or "model".
        is_one_process: all engines run in one process, so the metrics of the process are included only once.
    """
    up = GaugeMetricFamily(f"forerun:{label}_up", f"1 where the {label} can be asked.", labels=[label])
    families: dict[str, Metric] = {}
    for number, (index, page) in enumerate(pages.items()):
        up.add_metric([str(index)], float(page is not None))
        for family in text_string_to_metric_families(page or ""):
            is_shared = is_one_process and family.name.startswith(OF_PROCESS)
            if is_shared and number:
                continue
            known = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            for sample in family.samples:
                labels = sample.labels if is_shared else {**sample.labels, label: str(index)}
                known.add_sample(sample.name, labels, sample.value)
    return generate_latest(Families([*([] if is_one_process else [up]), *families.values()]))
