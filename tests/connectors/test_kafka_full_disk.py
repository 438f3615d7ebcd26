"""When the disk of a broker is full, the epoch waits in the sink's directory and is published when there is space."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from procession.connectors import kafka_sink
from procession.connectors.kafka_client import KafkaClients, KafkaUrl
from procession.connectors.kafka_sink import KafkaOutput
from procession.connectors.kafka_topic import KafkaSinkOptions
from procession.errors import DiskError
from procession.sdk.transaction_log import Transaction
from tests.storage.disks import tiny_disk
from tests.systems.kafka_broker import needs_kafka, running

pytestmark = [needs_kafka, pytest.mark.slow]

SMALL = {
    # Index files are allocated in their full size.
    "log__index__size__max__bytes": "65536",
    "log__segment__bytes": str(1024 * 1024),
    "transaction__state__log__segment__bytes": str(1024 * 1024),
    "offsets__topic__segment__bytes": str(1024 * 1024),
}


def test_an_epoch_that_does_not_fit_is_published_when_there_is_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_sink, "TRANSACTION_TIMEOUT_FIRST_S", 5)
    monkeypatch.setattr(kafka_sink, "PUBLISH_BYTES_PER_S_MIN", 32 * 1024 * 1024)
    with tiny_disk("24m") as disk, running(log__dirs=str(disk / "data"), **SMALL) as kafka:
        topic = kafka.topic()
        clients = KafkaClients(KafkaUrl.parse(kafka.url(topic)), {}, patience_s=5.0)
        output = KafkaOutput(tmp_path / "out", clients, KafkaSinkOptions())
        output.recover(0, None)
        records = [b"%07d" % number + bytes(993) for number in range(30_000)]  # 30 MB
        output.append(0, records)
        transaction = Transaction("id", 0, sum(map(len, records)))
        output.prepare(transaction)
        with pytest.raises(DiskError, match=r"No Kafka broker at .* answers"):
            output.commit(transaction)
        output.close()
        kafka.server.kill()
        subprocess.run(["mount", "-o", "remount,size=128m", str(disk)], check=True)
        kafka.server.start()
        again = KafkaOutput(tmp_path / "out", clients, KafkaSinkOptions())
        again.recover(0, transaction)
        again.commit(transaction)
        assert kafka.values(topic) == records
        again.close()
