"""The metrics of several engines merged into one Prometheus page, with a label for each engine."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

REPLICA: Final = "replica"
OF_PROCESS: Final = "process_"  # prefix of the metrics about the whole process


class MergedPages:
    """A collector for a Prometheus registry that merges metrics pages.

    Args:
        pages: one per replica or model; None where there was no answer.
        label: name of the label, "replica" or "model".
        is_one_process: all engines run in one process, so the metrics of the process are included only once.
    """

    def __init__(self, pages: Mapping[Any, str | None], *, label: str = REPLICA, is_one_process: bool = False) -> None:
        self._pages, self._label, self._is_one_process = pages, label, is_one_process

    def collect(self) -> Iterable[Metric]:
        """Every metric family once, with the samples of all pages."""
        label, is_first = self._label, True
        up = GaugeMetricFamily(f"forerun:{label}_up", f"1 where the {label} can be asked.", labels=[label])
        families: dict[str, Metric] = {}
        for index, page in self._pages.items():
            up.add_metric([str(index)], float(page is not None))
            for family in text_string_to_metric_families(page or ""):
                is_shared = self._is_one_process and family.name.startswith(OF_PROCESS)
                if is_shared and not is_first:
                    continue
                known = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                for sample in family.samples:
                    labels = sample.labels if is_shared else {**sample.labels, label: str(index)}
                    known.add_sample(sample.name, labels, sample.value)
            is_first = False
        return [*([] if self._is_one_process else [up]), *families.values()]


def merged(pages: Mapping[Any, str | None], *, label: str = REPLICA, is_one_process: bool = False) -> bytes:
    """All pages merged into one; see `MergedPages`."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(MergedPages(pages, label=label, is_one_process=is_one_process))
    return generate_latest(registry)
