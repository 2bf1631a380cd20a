"""The numbers of all replicas on one page for Prometheus, each under its replica's label."""

from collections.abc import Iterable, Mapping
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

LABEL: Final = "replica"


class MergedPages:
    """What a registry collects, of pages that were written elsewhere.

    Args:
        pages: by replica; None where a replica could not be asked.
    """

    def __init__(self, pages: Mapping[int, str | None]) -> None:
        self._pages = pages

    def collect(self) -> Iterable[Metric]:
        """Every family once, with the samples of all replicas."""
        up = GaugeMetricFamily("forerun:replica_up", "1 where the replica can be asked.", labels=[LABEL])
        families: dict[str, Metric] = {}
        for index, page in self._pages.items():
            up.add_metric([str(index)], float(page is not None))
            for family in text_string_to_metric_families(page or ""):
                known = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                for sample in family.samples:
                    labels = {**sample.labels, LABEL: str(index)}
                    known.add_sample(sample.name, labels, sample.value)
        return [up, *families.values()]


def merged(pages: Mapping[int, str | None]) -> bytes:
    """One page of all of them."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(MergedPages(pages))
    return generate_latest(registry)
