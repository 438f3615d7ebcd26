"""Dialects: an acceptor finds its peer's by the first frame, and an unknown version is refused."""

from __future__ import annotations

import pytest

from procession.wire import draft, v3
from procession.wire.dialect import DIALECTS, DRAFT, V3, Dialect, dialect_of
from procession.wire.lifecycle import Role


@pytest.mark.parametrize("default", [V3, DRAFT])
def test_only_the_tags_of_the_draft_tell_the_draft_and_only_from_a_source(default: Dialect) -> None:
    for tag in range(256):
        is_own = tag in draft.TAGS
        assert dialect_of(tag, Role.SOURCE, default) is (DRAFT if is_own else default)
        assert dialect_of(tag, Role.SINK, default) is default
    assert v3.MESSAGE_TAG not in draft.TAGS


def test_options_name_each_dialect() -> None:
    assert DIALECTS == {"v3": V3, "draft": DRAFT}


def test_a_version_belongs_to_one_dialect() -> None:
    for version, extensions in draft.VERSIONS.items():
        assert DRAFT.extensions(version) == extensions
        with pytest.raises(ValueError, match="has no frames in v3"):
            V3.extensions(version)
    assert V3.extensions("anything else") == frozenset()
    with pytest.raises(ValueError, match=r"unknown version 'x{20}'"):
        DRAFT.extensions("x" * 30)
