"""Stores the identity of a Kafka output, the name under which it publishes, in DIR/<instance>.kafka.

Invariant: an output has the same `transactional.id` and token after every restart, and no other output has them. The
file names the topic by its id, so a recreated topic is detected. Upstream: `connectors/kafka_sink`; downstream: the
disk.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from pathlib import Path

from procession.connectors.kafka_client import TopicFacts
from procession.connectors.kafka_token import ControlTopic
from procession.errors import StorageError
from procession.storage.durable import storage_error, write_durably

IDENTITY_FORMAT = 1


@dataclass(frozen=True, slots=True)
class OutputIdentity:
    """The producer identity of an output: the same after every restart, and different for every other output."""

    key: str
    topic_id: str
    token_partition: int

    @property
    def transactional_id(self) -> str:
        return f"procession-{self.key}"

    @classmethod
    def open(cls, base: Path, topic: TopicFacts, control: ControlTopic) -> OutputIdentity:
        """Return the identity in the file. Create the file if there is none."""
        path = base.with_name(f"{base.name}.kafka")
        partitions = control.prepare()
        try:
            stored = json.loads(path.read_bytes())
        except FileNotFoundError:
            key = f"{base.name}-{secrets.token_hex(8)}"
            identity = cls(key, topic.id, control.partition_of(key, partitions))
            facts = {"key": key, "topic": topic.name, "topic_id": topic.id, "token_partition": identity.token_partition}
            write_durably(path, json.dumps({"format": IDENTITY_FORMAT, **facts}).encode())
            return identity
        except OSError as error:
            raise storage_error(path, "read", error) from error
        except ValueError:
            stored = None
        match stored:
            case {
                "format": 1,
                "key": str(key),
                "topic": str(name),
                "topic_id": str(topic_id),
                "token_partition": int(at),
            }:
                if name != topic.name or topic_id != topic.id:
                    why = (
                        "another topic" if name != topic.name else "this topic before it was deleted and created again"
                    )
                    raise StorageError(
                        f"{path} belongs to {why}: {name} with the id {topic_id}.",
                        next_step="Give the output a directory of its own for the new topic, or name the old topic.",
                        path=str(path),
                    )
                return cls(key, topic_id, at)
        raise StorageError(
            f"{path} is not the identity of a Kafka output.",
            next_step="Restore the file from a copy; without it the published output is unknown.",
            path=str(path),
        )
