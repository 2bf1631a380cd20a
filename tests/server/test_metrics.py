"""The numbers of several replicas on one page."""

from prometheus_client.parser import text_string_to_metric_families

from forerun.server.metrics import ServerMetrics, merged


def page(*ends: str) -> str:
    metrics = ServerMetrics(num_waiting=lambda: 2, num_running=lambda: 1, is_ready=lambda: 1)
    for reason in ends:
        metrics.end(reason)
    return metrics.page().decode()


def samples_of(name: str, text: str) -> dict[tuple[tuple[str, str], ...], float]:
    return {
        tuple(sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name
    }


def test_every_number_is_there_once_for_each_replica() -> None:
    text = merged({("0",): page("stop", "stop"), ("1",): page("length"), ("2",): None}, labels=("replica",)).decode()
    ends = samples_of("forerun:request_success_total", text)
    assert ends == {
        (("finished_reason", "stop"), ("replica", "0")): 2,
        (("finished_reason", "length"), ("replica", "1")): 1,
    }
    assert samples_of("forerun:num_requests_waiting", text) == {(("replica", "0"),): 2, (("replica", "1"),): 2}
    assert list(samples_of("forerun:replica_up", text).values()) == [1, 1, 0]
    names = [line for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(names) == len(set(names))


def test_what_one_server_shows_the_page_of_replicas_shows() -> None:
    alone = page("stop")
    together = {
        family.name: family.type
        for family in text_string_to_metric_families(merged({("0",): alone}, labels=("replica",)).decode())
    }
    for family in text_string_to_metric_families(alone):
        assert together[family.name] == family.type
