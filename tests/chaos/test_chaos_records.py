"""The records of chaos runs: the same each time they are generated, unique, and found again in an output."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from procession.chaos.chaos_records import KEYS, RECORD_BYTES, SALT_BYTES, key_of, record, records, tag, unsalted

STREAMS = [tag(number) for number in (0, 7, 9999)]
SALTS = st.binary(min_size=SALT_BYTES - 1, max_size=SALT_BYTES - 1).map(lambda salt: b" " + salt)


def test_a_record_is_what_the_format_says() -> None:
    line = record("s0007", 123)
    assert line.startswith(b"s0007 0000123 ")
    assert line[14:15] == key_of(line)
    assert line[15:16] == b" "


@given(st.sampled_from(STREAMS), st.integers(0, 9_999_999))
def test_every_record_has_the_same_length_and_a_known_key(stream: str, number: int) -> None:
    line = record(stream, number)
    assert len(line) == RECORD_BYTES
    assert key_of(line) in [bytes([key]) for key in KEYS]
    assert key_of(line + b" 01234567") == key_of(line), "a salt does not change the key"


def test_records_are_unique_and_are_the_same_when_they_are_generated_again() -> None:
    made = [line for stream in STREAMS for line in records(stream, 200)]
    assert len(set(made)) == len(made) == 600
    assert made == [record(stream, number) for stream in STREAMS for number in range(200)]
    assert {key_of(line)[0] for line in made} == set(KEYS)


@given(st.lists(st.tuples(st.sampled_from(STREAMS), st.integers(0, 50), SALTS)))
def test_without_salt_each_stream_has_its_records_in_the_order_of_the_output(
    output: list[tuple[str, int, bytes]],
) -> None:
    found = unsalted(record(stream, number) + salt for stream, number, salt in output)
    assert found == {
        name: [record(stream, number) for stream, number, _ in output if stream == name]
        for name in {stream for stream, _, _ in output}
    }
