"""Metrics of a real gateway, parsed as Prometheus does."""

from __future__ import annotations

import json
import socket
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack

import pytest
from prometheus_client.parser import text_string_to_metric_families

from procession import metrics
from procession.address import Address, address_of, listening_socket
from procession.cli.streams_table import table
from procession.gateway.gateway_metrics import OTHERS
from procession.merge.event_time import DeclaredOrder
from procession.metrics import Metric, MetricsServer
from procession.wire.messages import Error, Message
from tests.gateway.gateway_process import GatewayProcess
from tests.gateway.producer import Producer

Make = Callable[..., GatewayProcess]
Values = dict[tuple[str, tuple[str, ...]], float]
ALL = 2**40


def read(address: str) -> Values:
    """Return every sample, by its name and the values of its labels in the order of the labels' names."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=20) as answer:
        text = answer.read().decode()
    return {
        (sample.name, tuple(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def where(gateway: GatewayProcess) -> str:
    return str(json.loads((gateway.directory / "gateway.json").read_text())["metrics"])


def test_the_metrics_count_received_records_lag_and_errors(gateway_process: Make) -> None:
    gateway = gateway_process(metrics="127.0.0.1:0", limits={"credits_max": 1000}).start()
    with Producer(gateway.listen) as one, Producer(gateway.listen) as other, gateway.client() as control:
        one.hello()
        one.notify(7)
        one.messages(7, range(100))
        other.hello()
        assert not other.notify(7).success
        other.send_raw(b"\x00\x00\x00\x00")
        other.expect(Error)
        while (end := control.offer(1, 0, ALL, ALL).end) < 100:
            pass
        seen = read(where(gateway))
        name = ("gateway-0", "stream 7", "7")
        assert seen["procession_stream_frames_total", name] == 100
        assert seen["procession_stream_bytes_total", name] == 190
        assert seen["procession_stream_lag_records", name] == 100
        assert seen["procession_stream_seen_id", name] == 99
        assert seen["procession_stream_notify_refused_total", name] == 1
        assert ("procession_stream_committed_id", name) not in seen, "nothing is committed yet"
        assert seen["procession_gateway_frames_total", ("MESSAGE", "gateway-0")] == 100
        assert seen["procession_gateway_errors_total", ("gateway-0", "frame")] == 1
        assert seen["procession_gateway_notify_refused_total", ("gateway-0",)] == 1
        assert seen["procession_gateway_streams", ("gateway-0", "open")] == 1
        assert seen["procession_gateway_lag_records", ("gateway-0",)] == 100
        assert 0 < seen["procession_gateway_credits_out", ("gateway-0",)] <= 1000
        assert seen["procession_stream_credits_out", name] == seen["procession_gateway_credits_out", ("gateway-0",)]
        assert seen["process_resident_memory_bytes", ()] > 0
        control.commit(1, 0, end, {7: 99})
        one.wait_committed(7, 99)
        seen = read(where(gateway))
        assert seen["procession_stream_committed_id", name] == 99
        assert seen["procession_stream_lag_records", name] == 0
        assert seen["procession_gateway_committed_sequence", ("gateway-0",)] == 100


def test_with_event_time_order_late_records_are_counted_by_stream_when_they_are_settled(
    gateway_process: Make,
) -> None:
    declared = DeclaredOrder(frozenset({1, 2}))
    gateway = gateway_process(metrics="127.0.0.1:0", declared=declared).start()
    total, of_one, of_two = ("gateway-0",), ("gateway-0", "stream 1", "1"), ("gateway-0", "stream 2", "2")
    with Producer(gateway.listen) as one, Producer(gateway.listen) as two, gateway.client() as control:
        for stream_id, producer, times in ((1, one, (10, 30, 20, 15, 40)), (2, two, (25, 40))):
            producer.hello()
            producer.notify(stream_id)
            seen = read(where(gateway))
            assert seen["procession_gateway_late_records_total", total] == 0, "stream 2 may still have earlier records"
            producer.send(*(Message(stream_id, at, time, b"", b"") for at, time in enumerate(times)))
        while control.offer(1, 0, ALL, ALL).end < 6:
            pass
        seen = read(where(gateway))
        assert seen["procession_gateway_late_records_total", total] == 2
        assert seen["procession_stream_late_records_total", of_one] == 2
        assert seen["procession_stream_late_records_total", of_two] == 0
        assert seen["procession_gateway_durable_sequence", total] == 6, "in the order of event time"
        both = [*gateway.directory.glob("log/*.segment"), *gateway.directory.glob("ordered/*.segment")]
        assert seen["procession_gateway_log_bytes", total] == sum(path.stat().st_size for path in both)
        rows = list(control.streams())
        assert [row["late"] for row in rows] == [2, 0]
        lines = list(table(rows))
        assert lines[0].split()[-1] == "late"
        assert [line.split()[-1] for line in lines[1:3]] == ["2", "0"]
        assert lines[3].endswith(", 2 late")


def test_only_a_limited_number_of_streams_have_their_own_metrics(gateway_process: Make) -> None:
    gateway = gateway_process(metrics="127.0.0.1:0", metrics_streams_max=3).start()
    with Producer(gateway.listen) as producer, gateway.client() as control:
        producer.hello()
        for stream_id in range(10):
            producer.notify(stream_id)
            producer.messages(stream_id, range(5))
        while control.status()["records_in"] < 50:
            pass
        seen = read(where(gateway))
        frames = {
            labels[2]: value for (name, labels), value in seen.items() if name == "procession_stream_frames_total"
        }
        assert frames == {"0": 5, "1": 5, "2": 5, OTHERS: 35}
        assert [name for name, labels in seen if name == "procession_stream_seen_id"] == 3 * [
            "procession_stream_seen_id"
        ]


def test_without_the_option_there_is_no_metrics_port(gateway_process: Make) -> None:
    gateway = gateway_process().start()
    assert "metrics" not in json.loads((gateway.directory / "gateway.json").read_text())


def test_readers_that_send_nothing_delay_others_only_briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics._Reader, "timeout", 0.05)
    listening = listening_socket(Address("127.0.0.1", 0))
    address = address_of(listening)
    server = MetricsServer(listening, lambda: [Metric("it", "gauge", "It.", (), [((), 7.0)])])
    try:
        with ExitStack() as silent:
            for _ in range(5):
                silent.enter_context(socket.create_connection(address))
            assert read(str(address))["it", ()] == 7
    finally:
        server.close()


def test_figures_that_are_too_slow_are_reported_as_missing() -> None:
    def late() -> list[Metric]:
        raise TimeoutError

    listening = listening_socket(Address("127.0.0.1", 0))
    address = address_of(listening)
    server = MetricsServer(listening, late)
    try:
        with pytest.raises(urllib.error.HTTPError, match="503"):
            read(str(address))
    finally:
        server.close()


@pytest.mark.parametrize("path", ["/", "/metrics/", "/metrics2", "/favicon.ico", "/-/reload"])
def test_the_port_answers_nothing_but_metrics(path: str) -> None:
    listening = listening_socket(Address("127.0.0.1", 0))
    server = MetricsServer(listening, lambda: [Metric("secret_name", "gauge", "", (), [((), 1.0)])])
    try:
        address = address_of(listening)
        assert ("secret_name", ()) in read(str(address))
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(f"http://{address}{path}", timeout=20)
        assert caught.value.code == 404
        assert b"secret_name" not in caught.value.read()
        posted = urllib.request.Request(f"http://{address}/metrics", data=b"x", method="POST")
        with pytest.raises(urllib.error.HTTPError):
            urllib.request.urlopen(posted, timeout=20)
    finally:
        server.close()
