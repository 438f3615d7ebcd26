"""Translates errors of Kafka's client and brokers into sentences that say who must act.

Invariant: an error has one sentence and one next step. If a broker refuses us or we do not trust the broker, the
error differs from that of an unreachable broker, because waiting does not help. Upstream: `connectors/kafka_client`;
downstream: librdkafka's error codes.
"""

from __future__ import annotations

import re

from confluent_kafka import KafkaError

from procession.errors import ConfigError, DiskError, ProcessionError, StorageError

_GONE = {
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._TIMED_OUT,
    KafkaError._TIMED_OUT_QUEUE,
    KafkaError._RESOLVE,
    KafkaError._WAIT_COORD,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.NOT_COORDINATOR,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_ENOUGH_REPLICAS,
    KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    KafkaError.KAFKA_STORAGE_ERROR,
    KafkaError._MSG_TIMED_OUT,
}
_TIMED_OUT = {KafkaError._TIMED_OUT, KafkaError._TIMED_OUT_QUEUE}
ELECTING = {KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE, KafkaError.OFFSET_NOT_AVAILABLE}
ELECTING |= {KafkaError.FENCED_LEADER_EPOCH, KafkaError.UNKNOWN_LEADER_EPOCH}
ELECTING |= {KafkaError._NOENT}  # the client's words for a partition whose metadata name no leader
_UNTRUSTED = {KafkaError._AUTHENTICATION, KafkaError._SSL, KafkaError.SASL_AUTHENTICATION_FAILED}
FORBIDDEN = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
_UNKNOWN_TOPIC = {
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
    KafkaError.UNKNOWN_TOPIC_ID,
}

_TLS_ALERT = re.compile(r"ssl/tls alert|tlsv1 alert|sslv3 alert")
"""Matches a refusal of our certificate by the broker, which the client reports as a lost connection."""


def is_gone(error: KafkaError) -> bool:
    """Return whether no broker answered, so the outcome of the request is unknown."""
    return error.code() in _GONE


def is_untrusted(error: KafkaError | None) -> bool:
    """Return whether the broker does not accept us, or we do not accept its certificate."""
    if error is None:
        return False
    return error.code() in _UNTRUSTED or (
        error.code() == KafkaError._TRANSPORT and bool(_TLS_ALERT.search(error.str()))
    )


def sentence_of(error: KafkaError, reason: KafkaError | None, brokers: str, what: str) -> ProcessionError:
    """Return the error as a sentence. `reason` is why the brokers were last unreachable; `what` names the failed
    action."""
    if is_gone(error) and reason is not None and is_untrusted(reason):
        error = reason
    code, text = error.code(), error.str().rstrip(". ")
    if is_untrusted(error):
        return ConfigError(
            f"The Kafka brokers at {brokers} do not accept this client, or it does not accept them: {text}.",
            next_step="Correct user, password and certificates in the file of --client-config. If the"
            " message says that a certificate is expired or not yet valid, compare the clocks.",
        )
    if is_gone(error):
        reasons = [] if reason is None else [reason.str().rstrip(". ")]
        if not reasons or code not in _TIMED_OUT:  # a time-out has no further information
            reasons.insert(0, text)
        return DiskError(
            f"No Kafka broker at {brokers} answers, to {what}: {': '.join(reasons)}.",
            next_step="Start the brokers; or correct the URL, or security.protocol in the file of --client-config."
            " The connector then continues where it stopped.",
        )
    if code in FORBIDDEN:
        return ConfigError(
            f"No permission to {what}: {text}.",
            next_step="Let the Kafka administrator add an ACL for this user; docs/how-to/kafka.md lists them.",
        )
    if code in _UNKNOWN_TOPIC:
        return ConfigError(
            f"The Kafka cluster at {brokers} cannot {what}: it does not know that topic or partition.",
            next_step="Create the topic, or correct its name.",
        )
    if code == KafkaError.INVALID_TRANSACTION_TIMEOUT:
        return ConfigError(
            "The broker's transaction.max.timeout.ms is too short for epochs of this size.",
            next_step="Lower --transaction-bytes-max here, or raise transaction.max.timeout.ms at the brokers.",
        )
    if code in (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_MSG_SIZE):
        return StorageError(
            f"The Kafka cluster at {brokers} refuses a record as too large, to {what}: {text}.",
            next_step="Raise max.message.bytes of the topic; the epoch is then published.",
        )
    return StorageError(
        f"The Kafka cluster at {brokers} refused to {what}: {text} ({error.name()}).",
        next_step="Correct that at the cluster; the connector then continues where it stopped.",
    )
