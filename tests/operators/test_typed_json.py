"""Typed records: a valid one becomes an object of the class, and an invalid one names the field and the reason."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from types import ModuleType
from typing import Any, NamedTuple
from uuid import UUID

import pytest
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, field_validator
from pyspark import cloudpickle

from procession import Pipeline, PlanError, json_of
from procession.errors import RecordError
from procession.operators import json_view
from procession.operators.named_types import NamedTypes
from procession.operators.value_codec import ValueCodec
from procession.testing import run


class Zone(Enum):
    HOME = "home"
    AWAY = "away"


class Place(NamedTuple):
    x: int
    y: int


@dataclass(frozen=True, slots=True)
class Part:
    seconds: int


@dataclass
class Call:
    caller: str
    at: datetime
    price: Decimal
    zone: Zone = Zone.HOME
    parts: tuple[Part, ...] = ()
    place: Place | None = None


class Visit(BaseModel):
    model_config = ConfigDict(extra="allow")

    user: str = Field(alias="u")
    seconds: int
    id: UUID | None = None
    _seen: int = PrivateAttr(default=0)

    @field_validator("seconds")
    @classmethod
    def is_positive(cls, seconds: int) -> int:
        if seconds < 0:
            raise ValueError("must not be negative")
        return seconds


CALL = {
    "caller": "a",
    "at": "2026-03-01T10:00:00+01:00",
    "price": "0.0950",
    "zone": "away",
    "parts": [{"seconds": 3}],
    "place": [1, 2],
}


def call(**changes: Any) -> bytes:
    return json.dumps({**CALL, **changes}).encode()


def typed_pipeline(**options: Any) -> Pipeline:
    pipeline = Pipeline("calls", parallelism=3, **options)
    calls = pipeline.source("calls", codec=json_of(Call))

    def total(state: Decimal, one: Call) -> tuple[Decimal, Any]:
        assert isinstance(one, Call)
        return state + one.price, {"call": one, "total": state + one.price}

    keyed = calls.map_stateful(total, key=lambda one: (one.caller, one.zone), initial=Decimal(0))
    keyed.sink("totals", to="file:output")
    return pipeline


def test_a_record_becomes_an_object_of_the_class_and_its_fields_have_their_types() -> None:
    found = json_of(Call).decode(call(unknown=1))
    assert found == Call(
        "a", datetime(2026, 3, 1, 9, tzinfo=UTC), Decimal("0.0950"), Zone.AWAY, (Part(3),), Place(1, 2)
    )
    assert found.price.as_tuple().exponent == -4


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (call(caller=7), "not a Call: caller is 7, but should be a valid string"),
        (call(price="x"), "not a Call: price is 'x', but should be a valid decimal"),
        (call(zone="moon"), "not a Call: zone is 'moon', but should be 'home' or 'away'"),
        (call(parts=[{"seconds": "3"}]), "not a Call: parts.0.seconds is '3', but should be a valid integer"),
        (b'{"caller": "a", "at": "2026-03-01T10:00:00Z"}', "not a Call: price is missing"),
        (b"[1", "not a Call: Invalid JSON: EOF while parsing a list at line 1 column 2"),
        (b"null", "not a Call: it is None, but should be an object"),
        (b'"\xff"', "not a Call: Invalid JSON: invalid unicode code point at line 1 column 2"),
        (
            call(caller=1, at=1, price=True, zone=1),
            "not a Call: caller is 1, but should be a valid string; at is 1, but should be a valid datetime; price is"
            " True, but Decimal input should be an integer, float, string or Decimal object; and 1 more",
        ),
        (call(caller=[8] * 100), f"not a Call: caller is {str([8] * 100)[:59]}…, but should be a valid string"),
    ],
)
def test_the_error_of_an_invalid_record_names_the_field_of_the_class_and_the_reason(
    payload: bytes, reason: str
) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011  (the whole text is compared)
        json_of(Call).decode(payload)
    assert str(caught.value) == reason


def test_the_message_of_a_models_validator_is_kept() -> None:
    with pytest.raises(ValueError, match=r"not a Visit: seconds is -1, but must not be negative$"):
        json_of(Visit).decode(b'{"u": "a", "seconds": -1}')


def test_without_strict_values_are_converted() -> None:
    found = json_of(Call, strict=False).decode(call(at=1_700_000_000, parts=[{"seconds": "3"}]))
    assert (found.at, found.parts) == (datetime.fromtimestamp(1_700_000_000, UTC), (Part(3),))


def test_a_bad_record_becomes_a_dead_letter_with_the_reason_and_the_others_come_out_in_order() -> None:
    given = [call(), call(price=[]), CALL, Call("b", datetime(2026, 1, 1, tzinfo=UTC), Decimal("1.5"))]
    expected = None
    for epochs, tasks in ((None, 1), (1, 2), (2, 4)):
        found = run(typed_pipeline(dead_letter="file:output"), {"calls": given}, epochs=epochs, parallelism=tasks)
        assert [result["total"] for result in found["totals"]] == ["0.0950", "0.1900", "1.5"]
        (letter,) = found["dead-letter"]
        assert (letter["stage"], letter["message_id"]) == ("calls", 2)
        assert letter["error"] == (
            "ValueError: not a Call: price is [], but Decimal input should be an integer, float, string or Decimal"
            " object"
        )
        expected = expected or found.bytes
        assert found.bytes == expected


def test_a_sink_writes_what_the_same_codec_reads() -> None:
    found = run(typed_pipeline(), {"calls": [CALL]})
    written = found["totals"][0]["call"]
    assert written == CALL
    assert json_of(Call).decode(json.dumps(written).encode()) == json_of(Call).decode(call())


def test_without_dead_letters_a_bad_record_stops_the_pipeline_and_names_the_field() -> None:
    with pytest.raises(RecordError, match=r"stage 'calls' raised on message 1 .* caller is 7") as caught:
        run(typed_pipeline(), {"calls": [call(caller=7)]})
    assert "let the producer send what the codec of the source reads" in str(caught.value.next_step)


def test_models_are_stored_exchanged_and_written() -> None:
    codec = ValueCodec(NamedTypes.of([Visit]))
    visit = json_of(Visit).decode(b'{"u": "a", "seconds": 3, "more": [1]}')
    visit._seen = 5
    stored = codec.decoded_value(codec.packed(visit))
    assert stored == visit
    assert (stored._seen, stored.more, stored.model_fields_set) == (5, [1], visit.model_fields_set)
    assert json_view.VALUES.decoded_value(codec.packed(visit)) == {"$class": "Visit", **dict(visit)}

    pipeline = Pipeline("visits", parallelism=2)
    visits = pipeline.source("visits", codec=json_of(Visit))
    last = visits.reduce(lambda before, one: max(before, one, key=lambda one: one.seconds), key=lambda one: one.user)
    last.sink("longest", to="file:output")
    given = [{"u": "a", "seconds": seconds} for seconds in (3, 5, 4)]
    found = run(pipeline, {"visits": given}, epochs=1)
    assert found["longest"] == [{"u": "a", "seconds": seconds, "id": None} for seconds in (3, 5, 5)]


def test_times_with_offsets_are_stored_as_they_were_read() -> None:
    codec, read = ValueCodec(), json_of(Call).decode(call()).at
    stored = codec.decoded_value(codec.packed(read))
    assert (stored, type(stored.tzinfo), stored.tzname()) == (read, type(read.tzinfo), read.tzname())


def test_the_codec_can_be_pickled_with_classes_that_tasks_cannot_import() -> None:
    # The annotations of the class are text, which only its module can resolve.
    source = "from __future__ import annotations\nfrom dataclasses import dataclass\nfrom decimal import Decimal\n"
    module = sys.modules["nowhere"] = ModuleType("nowhere")
    try:
        exec(source + "@dataclass\nclass Sale:\n    cents: Decimal\n", module.__dict__)
        cloudpickle.register_pickle_by_value(module)
        shipped = cloudpickle.dumps(json_of(module.Sale))
        cloudpickle.unregister_pickle_by_value(module)
    finally:
        del sys.modules["nowhere"]
    assert cloudpickle.loads(shipped).decode(b'{"cents": "1.5"}').cents == Decimal("1.5")


def test_explain_names_the_class_of_a_source() -> None:
    assert "objects of these classes\n  calls: Call\n" in typed_pipeline().explain()


@pytest.mark.parametrize("given", [dict, "Call", Place, Zone, CALL])
def test_an_argument_that_is_not_a_class_with_fields_is_refused(given: Any) -> None:
    with pytest.raises(PlanError, match="which is neither a dataclass nor a pydantic model"):
        json_of(given)


def test_a_field_whose_type_cannot_be_validated_is_refused_where_the_pipeline_is_declared() -> None:
    class Strange:
        pass

    @dataclass
    class Record:
        strange: Strange

    Record.__annotations__["strange"] = Strange
    Record.__dataclass_fields__["strange"].type = Strange
    with pytest.raises(PlanError, match=r"json_of\(Record\) cannot validate its fields"):
        json_of(Record)


def test_two_classes_of_one_name_are_refused() -> None:
    other = dataclass(type("Call", (), {"__annotations__": {"id": int}}))
    pipeline = Pipeline("p")
    pipeline.source("a", codec=json_of(Call), streams=["a"])
    with pytest.raises(PlanError, match="two classes of the pipeline have the name 'Call'"):
        pipeline.source("b", codec=json_of(other), streams=["b"])
