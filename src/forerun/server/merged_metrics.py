"""The numbers of several engines on one page for Prometheus, each under its engine's label."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

REPLICA: Final = "replica"
OF_PROCESS: Final = "process_"  # the beginning of names of numbers about a whole process


class MergedPages:
    """What a registry collects, of pages that were written elsewhere.

    Args:
        pages: by replica, or model; None where it could not be asked.
        label: what they are.
        is_one_process: they are in one, whose own numbers are told once.
    """

    def __init__(self, pages: Mapping[Any, str | None], *, label: str = REPLICA, is_one_process: bool = False) -> None:
        self._pages, self._label, self._is_one_process = pages, label, is_one_process

    def collect(self) -> Iterable[Metric]:
        """Every family once, with the samples of all."""
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
    """One page of all of them; see `MergedPages`."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(MergedPages(pages, label=label, is_one_process=is_one_process))
    return generate_latest(registry)
