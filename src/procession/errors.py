"""Errors: each class says who must act.

Invariant: an error has fields, a sentence for its reader and, if possible, a next step. It can be pickled, because it
crosses process boundaries (Spark's workers, the driver, the supervisor). Imports no other module of this package.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any


class ProcessionError(Exception):
    """The base class of all errors.

    Args:
        sentence: What happened, for the user.
        next_step: What the user can do.
        fields: Further details. They are also attributes of the error.
    """

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
        """Return the sentence and the next step as one text for a terminal."""
        sentence = _as_sentence(self.sentence)
        return f"{sentence}\n  Next: {_as_sentence(self.next_step)}" if self.next_step else sentence

    def as_dict(self) -> dict[str, Any]:
        """Return the error as a JSON object."""
        kind = type(self).__name__
        return {"kind": kind, "sentence": self.sentence, "next_step": self.next_step, "fields": self.fields}

    @staticmethod
    def from_dict(document: Mapping[str, Any]) -> ProcessionError:
        """Create an error from a JSON object. An unknown kind becomes a `ProcessionError`."""
        kinds: dict[str, type[ProcessionError]] = {kind.__name__: kind for kind in ProcessionError.__subclasses__()}
        kind = (kinds | {"UsageError": UsageError, "DiskError": DiskError}).get(document["kind"], ProcessionError)
        return kind(document["sentence"], next_step=document["next_step"], **document["fields"])


def _as_sentence(text: str) -> str:
    """Return the text with a capital letter and a full stop.

    A first word that is not a plain word stays unchanged, because it may be the name of a file.
    """
    first, _, rest = text.partition("\n")
    ended = first if first.endswith((".", ":", "?", "!", "…")) else f"{first}."
    is_word = ended.partition(" ")[0].rstrip(",:;.?!…").isalpha()
    return "\n".join(filter(None, (ended[:1].upper() + ended[1:] if is_word else ended, rest)))


def _rebuild(kind: type[ProcessionError], sentence: str, next_step: str, fields: dict[str, Any]) -> ProcessionError:
    return kind(sentence, next_step=next_step, **fields)


class LocalProtocolError(ProcessionError):
    """This program broke the protocol, which is a bug in Procession."""


class RemoteProtocolError(ProcessionError):
    """The peer broke the protocol. `sentence` is the reason in the ERROR frame."""


class StorageError(ProcessionError):
    """A disk or a file is not in the expected state: the operator must act."""


class DiskError(StorageError):
    """A write or a sync failed, perhaps temporarily.

    The process ends, is started again and recovers from disk. The operator must act only if the error repeats.
    """


class ConfigError(ProcessionError):
    """The settings do not work together: the operator must act."""


class UsageError(ConfigError):
    """Invalid command or argument: its author must act."""


class PlanError(ProcessionError):
    """The pipeline cannot run as it is declared: its author must act. The error names the stage and a solution."""


class RecordError(ProcessionError):
    """A function of the app raised on a record: its author must act. Fields: stage, stream_id, message_id, trace."""


class RoundError(ProcessionError):
    """A commit failed and the epoch is run again. No action is needed."""


class FencedError(ProcessionError):
    """A later driver has taken over: this driver must stop and change nothing more."""


_IN_A_TRACE = re.compile(r"^procession\.errors\.(StorageError|DiskError|ConfigError|RoundError): (.+)$", re.MULTILINE)


def error_in_text(text: str) -> ProcessionError | None:
    """Return the error in the trace of one of Spark's processes, if a user needs only its sentence. The error has a
    next step if an operator must act."""
    found = _IN_A_TRACE.findall(text)
    if not found:
        return None
    kind, sentence = found[-1]
    next_step = "Fix the cause, and start again: nothing is lost. logs/spark.log has the trace."
    if kind == "RoundError":
        next_step = ""
    return ProcessionError.from_dict({"kind": kind, "sentence": sentence, "next_step": next_step, "fields": {}})
