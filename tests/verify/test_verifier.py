"""The verifier finds and counts every kind of damage, alone and combined, at every position."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import combinations, permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from procession.verify import lines, order
from procession.verify.order import PromisedOrder
from procession.verify.verifier import Chunks, MemoryBounds, Outcome, Verdict, compare


def chunked(data: bytes, size: int = 7) -> Chunks:
    def chunks() -> Iterator[bytes]:
        yield from (data[start : start + size] for start in range(0, len(data), size))

    return chunks


def text(records: Sequence[object]) -> bytes:
    return b"".join(f"record-{record}\n".encode() for record in records)


def judged(expected: Sequence[object], actual: Sequence[object]) -> Verdict:
    return compare([chunked(text(expected))], chunked(text(actual), 5))


def counts(verdict: Verdict) -> tuple[int, int, int, int]:
    return verdict.lost, verdict.doubled, verdict.disordered, verdict.corrupt


GOOD = list(range(12))


@pytest.mark.parametrize("size", [1, 2, 9, 10, 1000])
def test_equal_streams_are_clean_however_they_are_cut(size: int) -> None:
    verdict = compare([chunked(text(GOOD))], chunked(text(GOOD), size))
    assert verdict == Verdict(Outcome.CLEAN, 12, 12)
    assert verdict.is_clean
    assert verdict.sentence() == "12 records: 0 lost, 0 doubled, 0 out of order"


def test_an_input_whose_last_line_lacks_its_newline_is_clean_when_the_output_has_it() -> None:
    assert compare([chunked(b"a\nb")], chunked(b"a\nb\n")).is_clean


def test_an_output_whose_last_line_lacks_its_newline_is_corrupt() -> None:
    verdict = compare([chunked(b"a\nb\n")], chunked(b"a\nb"))
    assert (verdict.outcome, counts(verdict)) == (Outcome.VIOLATED, (1, 0, 0, 1))
    assert str(verdict.first["corrupt"]) == "record 1 of the output: 'b'"


def test_an_empty_line_is_a_record_too() -> None:
    assert compare([chunked(b"a\n\nb\n")], chunked(b"a\n\nb\n")).records == 3
    assert counts(compare([chunked(b"a\n\nb\n")], chunked(b"a\nb\n"))) == (1, 0, 0, 0)


@pytest.mark.parametrize(("expected", "actual"), [(b"", b""), (b"", b"a\n"), (b"a\nb\n", b"")])
def test_an_empty_output_is_never_clean(expected: bytes, actual: bytes) -> None:
    verdict = compare([chunked(expected)], chunked(actual))
    assert verdict.outcome is Outcome.UNKNOWN
    assert not verdict.is_clean
    assert verdict.why.endswith(".")


@pytest.mark.parametrize("place", GOOD)
def test_a_lost_record_is_found_wherever_it_was(place: int) -> None:
    verdict = judged(GOOD, GOOD[:place] + GOOD[place + 1 :])
    assert (verdict.outcome, counts(verdict)) == (Outcome.VIOLATED, (1, 0, 0, 0))
    assert str(verdict.first["lost"]) == f"record {place} of the input: 'record-{place}'"


@pytest.mark.parametrize("place", GOOD)
@pytest.mark.parametrize("again", [0, 5, 12])
def test_a_doubled_record_is_found_wherever_it_comes_again(place: int, again: int) -> None:
    verdict = judged(GOOD, [*GOOD[:again], place, *GOOD[again:]])
    assert (verdict.outcome, counts(verdict)) == (Outcome.VIOLATED, (0, 1, 0, 0))
    assert verdict.first["doubled"].record == f"'record-{place}'"


@pytest.mark.parametrize(("one", "other"), list(combinations(GOOD, 2)))
def test_a_record_that_moved_is_one_disorder_and_a_swap_of_two_is_no_more_than_two(one: int, other: int) -> None:
    moved = [record for record in GOOD if record != one]
    moved.insert(other, one)
    assert counts(judged(GOOD, moved)) == (0, 0, 1, 0)
    swapped = GOOD.copy()
    swapped[one], swapped[other] = swapped[other], swapped[one]
    assert counts(judged(GOOD, swapped)) == (0, 0, 1 if other == one + 1 else 2, 0)


@pytest.mark.parametrize("position", range(len(text(GOOD))))
def test_any_changed_byte_is_found(position: int) -> None:
    damaged = bytearray(text(GOOD))
    damaged[position] ^= 0x20
    verdict = compare([chunked(text(GOOD))], chunked(bytes(damaged)))
    assert verdict.outcome is Outcome.VIOLATED
    assert verdict.corrupt
    assert verdict.lost


@pytest.mark.parametrize("end", range(1, len(text(GOOD))))
def test_an_output_that_is_cut_anywhere_is_found(end: int) -> None:
    verdict = compare([chunked(text(GOOD))], chunked(text(GOOD)[:end]))
    assert verdict.outcome is Outcome.VIOLATED
    assert verdict.lost == 12 - text(GOOD)[:end].count(b"\n")


def test_an_epoch_that_came_out_twice_is_doubled_and_not_out_of_order() -> None:
    assert counts(judged(GOOD, GOOD[:8] + GOOD[4:])) == (0, 4, 0, 0)


def test_two_blocks_that_changed_places_count_the_smaller_one() -> None:
    assert counts(judged(GOOD, GOOD[9:] + GOOD[:9])) == (0, 0, 3, 0)


def test_all_kinds_of_damage_together_are_each_counted_and_each_has_its_first_offender() -> None:
    verdict = judged(GOOD, [0, 2, 3, 4, "stranger", 5, 5, 7, 6, 8, 9, "other", 10, 10])
    assert counts(verdict) == (2, 2, 1, 2)
    assert {kind: (offender.where, offender.number) for kind, offender in verdict.first.items()} == {
        "lost": ("input", 1),
        "doubled": ("output", 6),
        "disordered": ("output", verdict.first["disordered"].number),
        "corrupt": ("output", 4),
    }
    assert verdict.first["disordered"].record in {"'record-7'", "'record-6'"}
    assert verdict.sentence() == "12 records: 2 lost, 2 doubled, 1 out of order, 2 corrupt"


def slow_longest_increasing(positions: Sequence[int]) -> int:
    lengths: list[int] = []
    for number, position in enumerate(positions):
        lengths.append(1 + max((lengths[i] for i in range(number) if positions[i] < position), default=0))
    return max(lengths, default=0)


@pytest.mark.parametrize("order", list(permutations(range(5))))
def test_disorder_is_the_least_number_of_records_to_remove_for_order(order: tuple[int, ...]) -> None:
    assert judged(range(5), order).disordered == 5 - slow_longest_increasing(order)


@given(st.integers(1, 30), st.data())
def test_any_output_is_judged_like_the_slow_and_obvious_reference(size: int, data: st.DataObject) -> None:
    expected = list(range(size))
    actual = data.draw(st.lists(st.integers(0, size + 3), min_size=1, max_size=40))
    known = [record for record in actual if record < size]
    verdict = judged(expected, actual)
    assert counts(verdict) == (
        size - len(set(known)),
        len(known) - len(set(known)),
        len(set(known)) - slow_longest_increasing(known),
        len(actual) - len(known),
    )
    assert verdict.is_clean == (actual == expected)
    assert set(verdict.first) == {
        kind for kind in ("lost", "doubled", "disordered", "corrupt") if getattr(verdict, kind)
    }


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=12), st.lists(st.sampled_from("abcd"), max_size=12))
def test_with_repeated_lines_only_what_is_equal_is_clean(expected: list[str], actual: list[str]) -> None:
    verdict = judged(expected, actual)
    assert verdict.is_clean == (actual == expected)
    assert verdict.lost == sum(max(0, expected.count(line) - actual.count(line)) for line in "abc")
    assert verdict.corrupt == sum(line not in expected for line in actual)


@given(st.randoms(use_true_random=False), st.integers(1, 10), st.integers(1, 10))
def test_two_inputs_may_be_interleaved_in_any_way_but_each_in_its_order(
    chance: random.Random, ones: int, others: int
) -> None:
    first, second = [f"a{n}" for n in range(ones)], [f"b{n}" for n in range(others)]
    sides = ["a"] * ones + ["b"] * others
    chance.shuffle(sides)
    streams = {"a": iter(first), "b": iter(second)}
    merged = [next(streams[side]) for side in sides]
    inputs = [chunked(text(first)), chunked(text(second))]
    assert compare(inputs, chunked(text(merged))).is_clean
    lost = compare(inputs, chunked(text([record for record in merged if record != "b0"])))
    if len(merged) > 1:
        assert counts(lost) == (1, 0, 0, 0)
        assert str(lost.first["lost"]) == "record 0 of the input 2: 'record-b0'"
    assert compare(inputs, chunked(text(merged[::-1]))).disordered == ones + others - 2


def test_order_across_inputs_that_share_a_line_cannot_be_told() -> None:
    verdict = compare([chunked(b"x\ny\n"), chunked(b"y\nx\n")], chunked(b"y\nx\nx\ny\n"))
    assert verdict.outcome in (Outcome.UNKNOWN, Outcome.CLEAN)
    verdict = compare([chunked(b"x\ny\nz\n"), chunked(b"z\ny\n")], chunked(b"z\ny\nx\ny\nz\n"))
    assert verdict.outcome is Outcome.UNKNOWN
    assert "order" in verdict.why


def test_an_endless_line_does_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "RECORD_BYTES_MAX", 100)
    verdict = compare([chunked(text(GOOD))], chunked(b"x" * 1000, 50))
    assert verdict.lost == 12
    assert verdict.corrupt > 1
    assert verdict.committed == verdict.corrupt


def test_a_long_offender_is_shown_in_part() -> None:
    verdict = compare([chunked(b"a\n")], chunked(b"y" * 1000 + b"\n", 64))
    assert verdict.first["corrupt"].record.endswith("… (1000 bytes)")
    assert len(verdict.first["corrupt"].record) < 300


@given(st.lists(st.integers(0, 60), min_size=1, max_size=80), st.integers(1, 50), st.integers(4, 40))
def test_in_bounded_memory_the_counts_are_the_same_and_disorder_is_never_too_small(
    actual: list[int], size: int, bound: int
) -> None:
    inputs, output = [chunked(text(range(size)))], chunked(text(actual))
    exact = compare(inputs, output)
    bounded = compare(inputs, output, bounds=MemoryBounds(bound))
    if bounded.why:  # so many equal lines do not fit
        assert max(actual.count(record) for record in actual) * 2 > bound or bounded.why == exact.why
        return
    assert (bounded.outcome, bounded.lost, bounded.doubled, bounded.corrupt) == (
        exact.outcome,
        exact.lost,
        exact.doubled,
        exact.corrupt,
    )
    assert bounded.disordered >= exact.disordered
    if not exact.doubled:
        assert bool(bounded.disordered) == bool(exact.disordered)
    assert {kind: offender for kind, offender in bounded.first.items() if kind != "disordered"} == {
        kind: offender for kind, offender in exact.first.items() if kind != "disordered"
    }


@pytest.mark.parametrize("moved_to", [0, 999])
def test_one_record_that_moved_far_is_one_disorder_in_bounded_memory_too(moved_to: int) -> None:
    records = list(range(1000))
    records.insert(moved_to, records.pop(999 - moved_to))
    verdict = compare([chunked(text(range(1000)))], chunked(text(records)), bounds=MemoryBounds(100))
    assert (verdict.disordered, verdict.is_disorder_bounded) == (1, True)
    assert "at most 1 out of order" in verdict.sentence()


def test_lines_that_are_all_equal_cannot_be_judged_in_bounded_memory() -> None:
    verdict = compare([chunked(b"same\n" * 1000)], chunked(b"same\n" * 999), bounds=MemoryBounds(100))
    assert verdict.outcome is Outcome.UNKNOWN
    assert "equal" in verdict.why


def test_more_keys_than_memory_was_meant_for_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order, "GROUPS_MAX", 5)
    lines = text(range(12))
    verdict = compare([chunked(lines)], chunked(lines[10:]), order=PromisedOrder.KEY, key_of=lambda line: line)
    assert verdict.outcome is Outcome.UNKNOWN
    assert "keys" in verdict.why


def test_order_by_key_needs_a_key() -> None:
    with pytest.raises(ValueError, match="key"):
        compare([chunked(b"a\n")], chunked(b"a\n"), order=PromisedOrder.KEY)


@pytest.mark.parametrize("last", [None, *GOOD])
def test_lost_records_up_to_the_last_acknowledged_one_count_as_acknowledged_and_lost(last: int | None) -> None:
    position = None if last is None else text(GOOD).index(b"record-%d\n" % last)
    verdict = compare([chunked(text(GOOD))], chunked(text([0, 1, 2, 4, 5, 6, 8, 9])), acknowledged=[position])
    lost = [record for record in (3, 7, 10, 11) if last is not None and record <= last]
    assert verdict.lost == 4
    assert verdict.acknowledged_lost == len(lost)
    assert ("acknowledged_lost" in verdict.first) == bool(lost)
    if lost:
        assert verdict.first["acknowledged_lost"].record == f"'record-{lost[0]}'"


def test_acknowledgements_belong_each_to_its_own_input() -> None:
    one, other = text(["a0", "a1"]), text(["b0", "b1"])
    verdict = compare([chunked(one), chunked(other)], chunked(text(["a0"])), acknowledged=[None, 0])
    assert (verdict.lost, verdict.acknowledged_lost) == (3, 1)
    assert verdict.first["acknowledged_lost"].record == "'record-b0'"


@pytest.mark.parametrize("end", range(1, 13))
def test_during_a_run_a_correct_prefix_is_clean_and_one_with_a_gap_is_not(end: int) -> None:
    so_far = GOOD[:end]
    verdict = compare([chunked(text(GOOD))], chunked(text(so_far)), is_complete=False)
    assert (verdict.outcome, verdict.committed) == (Outcome.CLEAN, end)
    if end > 1:
        verdict = compare([chunked(text(GOOD))], chunked(text(so_far[1:])), is_complete=False)
        assert (verdict.outcome, counts(verdict)) == (Outcome.VIOLATED, (1, 0, 0, 0))
        verdict = compare([chunked(text(GOOD))], chunked(text(so_far[1:])), is_complete=False, order=PromisedOrder.NONE)
        assert verdict.is_clean


def test_during_a_run_an_empty_output_is_not_clean_either() -> None:
    assert compare([chunked(text(GOOD))], chunked(b""), is_complete=False).outcome is Outcome.UNKNOWN
    assert compare([chunked(text(GOOD))], chunked(b"rec"), is_complete=False).outcome is Outcome.VIOLATED
