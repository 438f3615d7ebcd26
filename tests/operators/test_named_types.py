"""Named types: which classes may be stored, and how values of a changed class are read."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest
from pydantic import BaseModel

from procession import PlanError
from procession.operators.named_types import NamedTypes, is_model, is_storable, model_parts


class Span(NamedTuple):
    start: int
    end: int = 9


class Colour(enum.Enum):
    RED = 1


@dataclass(frozen=True)
class Money:
    amount: int
    unit: str = "EUR"
    tags: list[str] = field(default_factory=list)


class Person(BaseModel):
    name: str
    age: int = 3


TYPES = NamedTypes.of([Span, Colour, Money, Person])


@pytest.mark.parametrize(
    ("kind", "is_one"),
    [(Span, True), (Colour, True), (Money, True), (Person, True), (int, False), (tuple, False), (3, False)],
)
def test_dataclasses_named_tuples_models_and_enums_can_be_stored(kind: Any, is_one: bool) -> None:
    assert is_storable(kind) is is_one


def test_classes_that_cannot_be_stored_and_repeated_names_are_refused() -> None:
    with pytest.raises(PlanError, match="which is not a dataclass"):
        NamedTypes.of([int])
    other = type("Span", (), {"__dataclass_fields__": {}})
    with pytest.raises(PlanError, match="two classes of the pipeline have the name 'Span'"):
        TYPES.including([other])
    assert TYPES.including([Span]) == TYPES


def test_a_type_that_is_not_listed_is_neither_stored_nor_read() -> None:
    with pytest.raises(TypeError, match=r"Pipeline\(…, types=\[Span\]\)"):
        NamedTypes().name_of(Span)
    with pytest.raises(PlanError, match="of type 'Span', which the pipeline does not list"):
        NamedTypes().named("Span")
    assert TYPES.named(TYPES.name_of(Span)) is Span


@pytest.mark.parametrize(
    ("name", "values", "expected"),
    [
        ("Span", {"start": 1}, Span(1, 9)),
        ("Money", {"amount": 5}, Money(5, "EUR", [])),
        ("Money", {"amount": 5, "unit": "USD", "tags": ["x"]}, Money(5, "USD", ["x"])),
    ],
)
def test_fields_that_stored_values_lack_get_their_defaults(name: str, values: dict[str, Any], expected: Any) -> None:
    assert TYPES.build(name, values) == expected


@pytest.mark.parametrize(
    ("name", "values", "sentence"),
    [
        ("Span", {"start": 1, "middle": 2}, "has the fields start, end instead of start, middle"),
        ("Money", {"amount": 5, "cents": 2}, "has no field 'cents'"),
        ("Money", {"unit": "EUR"}, "has a field 'amount' without a default"),
        ("Colour", {}, "has no fields"),
    ],
)
def test_values_of_an_earlier_version_that_do_not_fit_are_refused(name: str, values: Any, sentence: str) -> None:
    with pytest.raises(PlanError, match=sentence):
        TYPES.build(name, values)


def test_a_member_is_found_by_its_name_or_without_one_by_its_value() -> None:
    assert TYPES.member("Colour", "RED", 7) is Colour.RED
    assert TYPES.member("Colour", None, 1) is Colour.RED
    with pytest.raises(PlanError, match="has no member 'BLUE'"):
        TYPES.member("Colour", "BLUE", 2)


def test_a_model_is_read_unchanged_without_a_second_validation() -> None:
    person = Person.model_construct(name=4)
    assert is_model(Person)
    read = TYPES.made_model("Person", *model_parts(person))
    assert (read, read.model_fields_set) == (person, {"name"})


@pytest.mark.parametrize(
    ("name", "values", "sentence"),
    [
        ("Person", {"name": "x", "size": 2}, "has no field 'size'"),
        ("Person", {"age": 2}, "has a field 'name' without a default"),
        ("Span", {"start": 2}, "has no fields of a model"),
    ],
)
def test_a_model_of_an_earlier_version_that_does_not_fit_is_refused(name: str, values: Any, sentence: str) -> None:
    with pytest.raises(PlanError, match=sentence):
        TYPES.made_model(name, values, [], None, None)
