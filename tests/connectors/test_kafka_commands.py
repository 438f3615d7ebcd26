"""Kafka on the command line and in the URLs of apps: options, secrets in files, and bad input, which is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from procession import Pipeline
from procession.connectors.kafka_client import KafkaClients, KafkaUrl, read_client_config
from procession.connectors.kafka_messages import MessageEncoder
from procession.connectors.kafka_scheme import CONNECTOR, EPOCH_BYTES_MAX
from procession.connectors.kafka_sink import KafkaOutput
from procession.connectors.kafka_source import KafkaSource, KafkaSourceOptions, url_streams
from procession.connectors.kafka_topic import KafkaSinkOptions
from procession.connectors.schema_registry import RegistryCodec, SchemaRegistry
from procession.errors import ConfigError, PlanError, RecordError
from procession.planner.connector_registry import sink_of, source_of
from procession.sdk.transaction_log import Transaction
from tests.systems.kafka_broker import Kafka, needs_kafka
from tests.systems.schema_registry_server import RegistryServer
from tests.walk.commands import run

pytestmark = needs_kafka


@pytest.mark.parametrize("kind", ["source", "sink"])
def test_the_help_of_the_kafka_command_is_printed(kind: str, tmp_path: Path) -> None:
    done = run(kind, "kafka", "--help", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "--client-config" in done.stdout


@pytest.mark.parametrize(("given", "missing"), [(["--partitions", "0"], "a directory"), (["state"], "--partitions")])
def test_streams_by_name_need_the_identity_of_the_topic(tmp_path: Path, given: list[str], missing: str) -> None:
    done = run("source", "kafka", "kafka://b:1/t", *given, "--streams-by-name", "--to", "here:1", cwd=tmp_path)
    assert done.returncode == 2
    assert f"--streams-by-name needs {missing}." in done.stderr


@pytest.mark.parametrize(
    "given",
    [["--records", "blocks"], ["--records", "lanes", "--tombstones"], ["--records", "lanes", "--partition", "0"]],
)
def test_options_that_lane_blocks_cannot_have_are_refused(tmp_path: Path, given: list[str]) -> None:
    done = run("sink", "kafka", "kafka://b:1/t", "state", "--lane-messages", "blocks", *given, cwd=tmp_path)
    assert done.returncode == 2
    assert (
        "lanes use" in done.stderr.lower() or "lanes have" in done.stderr.lower() or "messages of lanes" in done.stderr
    )
    assert not (tmp_path / "state").exists()


def test_options_of_an_apps_url_are_options_of_the_program() -> None:
    _, url = sink_of(
        "kafka://a:1,b/alerts?partition=0&tombstones=true&envelope=false&transaction_bytes_max=1000", "sink"
    )
    assert CONNECTOR.sink is not None
    arguments = ["kafka://a:1,b/alerts", "/d", "--partition", "0", "--tombstones", "--transaction-bytes-max", "1000"]
    assert CONNECTOR.sink.arguments(url, Path("/d")) == arguments
    assert CONNECTOR.sink.limits(url).bytes_max == 1000
    _, plain = sink_of("kafka://a/alerts", "sink")
    assert CONNECTOR.sink.limits(plain).bytes_max == EPOCH_BYTES_MAX
    _, url = source_of("kafka://a/orders?start=latest&partitions=0,1&stop_at_end=true", "source")
    assert CONNECTOR.source is not None
    assert CONNECTOR.source.ends(url)
    arguments = ["kafka://a/orders", "/d", "--start", "latest", "--partitions", "0,1", "--stop-at-end"]
    assert CONNECTOR.source.arguments(url, Path("/d")) == arguments


@pytest.mark.parametrize(
    "url",
    [
        "kafka://a/t?colour=red",
        "kafka://a/t?partition=x",
        "kafka://a/t?tombstones=yes",
        "kafka://a/t?compression=zip",
        "kafka:///t",
        "kafka://a/",
        "kafka://ann@a/t",
        "kafka://ann:s3cr3t@a/t",
    ],
)
def test_a_bad_url_of_an_app_is_refused_without_its_secret(url: str) -> None:
    with pytest.raises(PlanError) as raised:
        sink_of(url, "sink")
    assert "s3cr3t" not in raised.value.sentence


def explained(order: str, to: str) -> str:
    pipeline = Pipeline("p", order=order)  # type: ignore[arg-type]
    pipeline.source("orders").sink("alerts", to=to)
    return pipeline.explain()


def test_explain_describes_the_effect_of_several_partitions_on_the_order() -> None:
    sentence = "order at the sinks\n  alerts: a topic keeps the order 'total' within a partition"
    assert sentence in explained("total", "kafka://a/alerts")
    assert "keeps the order 'stream' within a partition" in explained("stream", "kafka://a/alerts")
    assert "order at the sinks" not in explained("total", "kafka://a/alerts?partition=0")
    assert "order at the sinks" not in explained("none", "kafka://a/alerts")
    assert "order at the sinks" not in explained("total", "file:out")


def test_settings_of_a_client_file_reach_the_client_and_others_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    path.write_text("# ours\nsecurity.protocol=SASL_SSL\nsasl.username = ann\nsasl.password=a=b\n\n")
    assert read_client_config(path) == {
        "security.protocol": "SASL_SSL",
        "sasl.username": "ann",
        "sasl.password": "a=b",
    }
    path.write_text("acks=0\n")
    with pytest.raises(ConfigError, match="sets acks, which this file cannot set"):
        read_client_config(path)
    path.write_text("what\n")
    with pytest.raises(ConfigError, match="Line 1"):
        read_client_config(path)
    with pytest.raises(ConfigError, match="Cannot read"):
        read_client_config(tmp_path / "none")
    path.write_text(f"security.protocol=SSL\nssl.ca.location={tmp_path}/none.pem\n")
    named = r"Line 2 of .* names .*/none\.pem as ssl\.ca\.location, which cannot be read: No such file or directory"
    with pytest.raises(ConfigError, match=named):
        read_client_config(path)
    path.write_text("ssl.ca.location=probe\n")
    assert read_client_config(path) == {"ssl.ca.location": "probe"}
    path.write_text(f"ssl.ca.location={tmp_path}\n")
    assert read_client_config(path) == {"ssl.ca.location": str(tmp_path)}, "a directory of certificates is accepted"
    with pytest.raises(ConfigError, match="refuses its settings"):
        KafkaClients(KafkaUrl.parse("kafka://a/t"), {"security.protocol": "telegraph"}).consumer({})


def test_a_missing_topic_ends_the_command_with_a_sentence_and_status_3(kafka: Kafka, tmp_path: Path) -> None:
    done = run("sink", "kafka", kafka.url("none"), "sink", cwd=tmp_path)
    assert done.returncode == 3
    assert "cannot describe the topic none" in done.stderr
    assert "Next: Create the topic" in done.stderr


def test_values_with_schemas_are_written_and_read_as_json(kafka: Kafka, tmp_path: Path) -> None:
    topic = kafka.topic()
    schema = {"type": "record", "name": "Alert", "fields": [{"name": "text", "type": "string"}]}
    clients = KafkaClients(KafkaUrl.parse(kafka.url(topic)), {})
    with RegistryServer() as server:
        number = server.register(f"{topic}-value", json.dumps(schema))
        registry = SchemaRegistry(server.url)
        encoder = MessageEncoder(codec=RegistryCodec(registry, f"{topic}-value"))
        output = KafkaOutput(tmp_path / "out", clients, KafkaSinkOptions(encoder=encoder))
        output.recover(0, None)
        with pytest.raises(RecordError, match="does not fit the schema"):
            output.append(0, [b'{"text": 7}'])
        output.recover(0, None)
        payload = b'{"text":"late"}'
        output.append(0, [payload])
        transaction = Transaction("id", 0, len(payload))
        output.prepare(transaction)
        output.commit(transaction)
        output.close()
        assert kafka.values(topic) == [b"\0" + number.to_bytes(4, "big") + b"\x08late"]
        options = KafkaSourceOptions(is_ending=True, codec=RegistryCodec(registry))
        source = KafkaSource(clients, options)
        [stream] = source.streams()  # type: ignore[misc]
        assert [row for batch in source.read(stream, None) for row in batch.payloads.to_pylist()] == [payload]
        kafka.publish(topic, [b"no schema"])
        with pytest.raises(RecordError, match="at offset"):
            list(KafkaSource(clients, options).read(stream, None))


def test_the_streams_of_an_apps_source_that_ends_are_those_that_the_program_reads(kafka: Kafka) -> None:
    topic = kafka.topic(partitions=3)
    _, url = source_of(f"{kafka.url(topic)}?stop_at_end=true&partitions=0,2", "source")
    clients = KafkaClients(KafkaUrl.parse(kafka.url(topic)), {})
    assert url_streams(url) == KafkaSource(clients, KafkaSourceOptions(frozenset({0, 2}))).stream_ids
    assert len(url_streams(url)) == 2
