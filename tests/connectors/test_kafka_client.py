"""Requests to Kafka's administration, against a client that answers as a cluster does while it elects leaders."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any, NamedTuple

import pytest
from confluent_kafka import IsolationLevel, KafkaError, KafkaException
from confluent_kafka.admin import OffsetSpec

from procession.connectors.kafka_client import KafkaClients, KafkaUrl
from procession.connectors.kafka_errors import ELECTING
from procession.errors import StorageError


class Offset(NamedTuple):
    offset: int


class Admin:
    """Answers with these errors, one per request, and then with offset 7."""

    def __init__(self, *errors: int) -> None:
        self.errors = list(errors)

    def poll(self, timeout_s: float) -> int:
        return 0

    def list_offsets(self, wanted: Mapping[Any, Any], **_: Any) -> dict[Any, Future[Offset]]:
        future: Future[Offset] = Future()
        if self.errors:
            future.set_exception(KafkaException(KafkaError(self.errors.pop(0))))
        else:
            future.set_result(Offset(7))
        return dict.fromkeys(wanted, future)


def offset(admin: Admin) -> int:
    clients = KafkaClients(KafkaUrl.parse("kafka://127.0.0.1:1/input"), {})
    clients._admin = admin
    return clients.offset("input", 0, OffsetSpec.latest(), IsolationLevel.READ_COMMITTED)


@pytest.mark.parametrize("error", sorted(ELECTING | {KafkaError._NOENT}))
def test_an_offset_is_asked_again_while_no_leader_is_elected(error: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("procession.connectors.kafka_client.POLL_INTERVAL_S", 0.0)
    admin = Admin(error, error)
    assert offset(admin) == 7
    assert admin.errors == []


def test_other_errors_are_sentences_at_once() -> None:
    admin = Admin(KafkaError.INVALID_REQUEST, KafkaError.INVALID_REQUEST)
    with pytest.raises(StorageError, match=r"find offsets of input\[0\]"):
        offset(admin)
    assert len(admin.errors) == 1
