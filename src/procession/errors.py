"""Errors: each class says who must act.

The one rule: an error carries its fields, a sentence for the person who reads it and, where there is one, a next
step; and it pickles, because it crosses process borders (Spark's workers, the driver, the supervisor). Imports
nothing of ours.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any


class ProcessionError(Exception):
    """The root. `sentence` is what a user reads; `next_step` is what they do about it."""

    def __init__(self, sentence: str, *, next_step: str = "", **fields: Any) -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.next_step = next_step
        self.fields = fields

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.sentence, self.next_step, self.fields)

    def __getattr__(self, name: str) -> Any:
        # Only reached when ordinary lookup fails; `fields` may be missing while unpickling.
        try:
            return self.__dict__["fields"][name]
        except KeyError:
            raise AttributeError(name) from None

    def explain(self) -> str:
        """The sentence and the next step, as one text for a terminal."""
        told = _as_sentence(self.sentence)
        return f"{told}\n  Next: {_as_sentence(self.next_step)}" if self.next_step else told

    def as_dict(self) -> dict[str, Any]:
        """The error as JSON can carry it: between a task, the driver and the supervisor."""
        kind = type(self).__name__
        return {"kind": kind, "sentence": self.sentence, "next_step": self.next_step, "fields": self.fields}

    @staticmethod
    def from_dict(told: Mapping[str, Any]) -> ProcessionError:
        """The error again. A kind that is not known is the root."""
        kinds: dict[str, type[ProcessionError]] = {kind.__name__: kind for kind in ProcessionError.__subclasses__()}
        kind = (kinds | {"UsageError": UsageError, "DiskError": DiskError}).get(told["kind"], ProcessionError)
        return kind(told["sentence"], next_step=told["next_step"], **told["fields"])


def _as_sentence(text: str) -> str:
    """With a capital and a full stop, however it was written where it was raised. What is no plain word is left as it
    is: it may be the name of a file."""
    first, _, rest = text.partition("\n")
    ended = first if first.endswith((".", ":", "?", "!", "…")) else f"{first}."
    is_word = ended.partition(" ")[0].rstrip(",:;.?!…").isalpha()
    return "\n".join(filter(None, (ended[:1].upper() + ended[1:] if is_word else ended, rest)))


def _rebuild(kind: type[ProcessionError], sentence: str, next_step: str, fields: dict[str, Any]) -> ProcessionError:
    return kind(sentence, next_step=next_step, **fields)


class LocalProtocolError(ProcessionError):
    """We tried to do what the protocol forbids: a bug of ours."""


class RemoteProtocolError(ProcessionError):
    """The peer broke the protocol. `sentence` is the short reason that goes into the ERROR frame."""


class StorageError(ProcessionError):
    """A disk or file is not as it must be: the operator acts."""


class DiskError(StorageError):
    """A write or a sync failed in a way that may pass: the process ends, is started again and recovers from what is
    on disk. The operator acts only if it keeps failing."""


class ConfigError(ProcessionError):
    """The settings cannot work: the operator acts."""


class UsageError(ConfigError):
    """A command or a call says what nothing can be made of: whoever wrote it acts."""


class PlanError(ProcessionError):
    """The pipeline as written cannot keep its promise: the user acts. Names the stage and the way out."""


class RecordError(ProcessionError):
    """A user's function raised on a record: the user acts. Fields: stage, stream_id, message_id, trace."""


class RoundError(ProcessionError):
    """A round failed and the epoch is run again: nobody acts."""


class FencedError(ProcessionError):
    """A later driver has taken over: this one must stop and touch nothing more."""


_OF_AN_OPERATOR = re.compile(r"^procession\.errors\.(StorageError|DiskError|ConfigError): (.+)$", re.MULTILINE)


def told_in(text: str) -> ProcessionError | None:
    """What the operator must act on, if our code said that in a process of Spark's, which hands on its trace."""
    found = _OF_AN_OPERATOR.findall(text)
    if not found:
        return None
    kind, sentence = found[-1]
    next_step = "Mend that, and start again: nothing is lost. logs/spark.log has the trace."
    return ProcessionError.from_dict({"kind": kind, "sentence": sentence, "next_step": next_step, "fields": {}})
