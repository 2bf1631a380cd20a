"""What watches a server asks for numbers that there are: the dashboard for Grafana and the rules for Prometheus."""

import json
import re
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from forerun.server.metrics import merged
from tests.server.serving import Served

DEPLOY: Final = Path(__file__).resolve().parents[2] / "deploy"
DASHBOARD: Final = json.loads((DEPLOY / "grafana.json").read_text())
RULES: Final = (DEPLOY / "alerts.yml").read_text()
NAME: Final = re.compile(r"\b(?:forerun:|process_)\w+")
ENDINGS: Final = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",)}


@pytest.fixture(scope="module")
def labels_of(server: Served) -> dict[str, set[str]]:
    """The labels of every number that a server with replicas shows, after a request."""
    with server.client() as client:
        asked = {"prompt": "def f(", "max_tokens": 8}
        assert client.post("/v1/completions", json=asked).status_code == 200
        server.service.metrics.refuse("of_the_test")
        page = client.get("/metrics").text
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(merged({("0",): page}, labels=("replica",)).decode()):
        for ending in ENDINGS.get(family.type, ()):
            found.setdefault(family.name + ending, set())
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def expressions() -> dict[str, str]:
    """What every panel asks for."""
    return {
        f"{panel['title']} {target['refId']}": target["expr"]
        for panel in DASHBOARD["panels"]
        for target in panel["targets"]
    }


@pytest.mark.parametrize("title", expressions())
def test_every_panel_asks_for_numbers_that_there_are(title: str, labels_of: dict[str, set[str]]) -> None:
    expression = expressions()[title]
    names = NAME.findall(expression)
    assert names
    assert set(names) <= set(labels_of)
    known = set().union(*(labels_of[name] for name in names)) | {"instance", "job"}  # which Prometheus adds
    for listed in re.findall(r"(?:by|on) \(([\w, ]+)\)", expression):
        assert set(listed.split(", ")) <= known


@pytest.mark.parametrize("rule", re.findall(r"expr: (.*)", RULES))
def test_every_alert_asks_for_numbers_that_there_are(rule: str, labels_of: dict[str, set[str]]) -> None:
    assert set(NAME.findall(rule)) <= set(labels_of)
    assert NAME.findall(rule) or "up{" in rule


def test_every_number_of_ours_has_a_line_that_explains_it(client: httpx.Client) -> None:
    page = client.get("/metrics").text
    explained = set(re.findall(r"# HELP (\S+) \S", page))
    for name in NAME.findall(page):
        assert explained & {name, re.sub(r"_(bucket|sum|count|created)$", "", name)}, name


def test_the_dashboard_is_one_that_grafana_reads() -> None:
    panels: list[dict[str, Any]] = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert {panel["type"] for panel in panels} == {"stat", "timeseries"}
    assert all(panel["datasource"]["uid"] == "${datasource}" for panel in panels)
    variables = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    assert set(re.findall(r"\$\{?(\w+)", json.dumps(DASHBOARD))) <= variables | {"__all"}
    places = [panel["gridPos"] for panel in panels]
    cells = [(x, y) for p in places for x in range(p["x"], p["x"] + p["w"]) for y in range(p["y"], p["y"] + p["h"])]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24  # columns that Grafana has
