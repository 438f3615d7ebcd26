"""The generator produces the same records each time, from any position, with the documented distribution."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from procession.connectors import generator_source
from procession.connectors.generator_source import GeneratorSource, Recipe
from procession.errors import ConfigError
from procession.sdk.source_records import Batch


def rows(batches: list[Batch]) -> list[tuple[int, bytes, bytes]]:
    return [
        row
        for batch in batches
        for row in zip(
            batch.message_ids.tolist(),
            [b""] * len(batch) if batch.keys is None else batch.keys.to_pylist(),
            batch.payloads.to_pylist(),
            strict=True,
        )
    ]


def everything(recipe: Recipe, stream: int = 0, after: int | None = None) -> list[tuple[int, bytes, bytes]]:
    source = GeneratorSource(recipe)
    return rows(list(source.read(source.streams()[stream], after)))


def test_the_records_of_a_seed_never_change_between_versions() -> None:
    assert everything(Recipe(records=3, size=20, keys=10, seed=1)) == [
        (0, b"key-2", b"0uKxx4JZ6VGVVIFbzU3B"),
        (1, b"key-1", b"gaK6duISYRIxTOXIZ8tf"),
        (2, b"key-5", b"ij_36xlT45ag_AUsi3z0"),
    ]
    assert GeneratorSource(Recipe(seed=1)).streams()[0].name == "generator-1-0"


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 40), st.integers(0, 40), st.integers(0, 5), st.integers(-5, 2**70))
def test_a_record_does_not_depend_on_the_start_position(records: int, size: int, keys: int, seed: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        whole = everything(Recipe(records, size, keys, seed))
        patch.setattr(generator_source, "BATCH_RECORDS_MAX", 7)
        recipe = Recipe(records, size, keys, seed)
        assert everything(recipe) == whole
        assert [message_id for message_id, *_ in whole] == list(range(records))
        for after in range(0, records, 5):
            assert everything(recipe, after=after) == whole[after + 1 :]
        assert {len(payload) for *_, payload in whole} <= {size}
        assert all(b"\n" not in payload for *_, payload in whole)


def test_records_differ_by_seed_stream_and_number_and_keys_are_evenly_distributed() -> None:
    recipes = [Recipe(1000, 16, 10, seed, streams=2) for seed in (0, 1)]
    made = [everything(recipe, stream) for recipe in recipes for stream in (0, 1)]
    payloads = [payload for records in made for *_, payload in records]
    assert len(set(payloads)) == 4000
    for records in made:
        _, counts = np.unique([key for _, key, _ in records], return_counts=True)
        assert len(counts) == 10
        assert counts.min() > 60


def test_without_a_number_of_records_the_stream_does_not_end() -> None:
    source = GeneratorSource(Recipe(size=1))
    batches = source.read(source.streams()[0], 10**12)
    assert int(next(batches).message_ids[0]) == 10**12 + 1
    assert len(next(batches)) == generator_source.BATCH_RECORDS_MAX


def test_large_records_come_in_small_batches() -> None:
    source = GeneratorSource(Recipe(size=300_000))
    assert len(next(source.read(source.streams()[0], None))) == 3


@pytest.mark.parametrize(
    "settings", [{"records": -1}, {"size": -1}, {"size": 2**30}, {"keys": -1}, {"keys": 10**9}, {"streams": 0}]
)
def test_invalid_generator_options_are_refused(settings: dict[str, int]) -> None:
    with pytest.raises(ConfigError) as caught:
        Recipe(**settings)
    assert caught.value.next_step
