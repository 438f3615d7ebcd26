"""Transaction ids are parsed into the parts that they were made of, and never confused with foreign ones."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from procession.commit.transaction_id import TransactionId

# Valid names, some of which contain the separators of a transaction's name.
NAMES = st.one_of(
    st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,12}", fullmatch=True),
    st.sampled_from(["a-w-b", "w", "a-id-b", "-w-"[1:], "x-w-y-id-0", "id-abc"]),
)
NUMBERS = st.integers(0, 2**63)
TRANSACTIONS = st.builds(
    TransactionId,
    NUMBERS,
    NUMBERS,
    NUMBERS,
    st.from_regex(r"[0-9a-f]{12}", fullmatch=True),
    NAMES,
    NAMES,
    st.booleans(),
)


@given(transaction=TRANSACTIONS)
def test_the_parts_of_a_transaction_id_are_read_back(transaction: TransactionId) -> None:
    parsed = TransactionId.parse(str(transaction))
    assert parsed is not None
    assert str(parsed) == str(transaction)
    assert (parsed.epoch, parsed.fence, parsed.attempt) == (transaction.epoch, transaction.fence, transaction.attempt)
    assert parsed.checkpoint == transaction.checkpoint
    assert parsed.has_old_form == transaction.has_old_form


@given(transaction=TRANSACTIONS, epoch=NUMBERS, fence=NUMBERS, attempt=NUMBERS)
def test_i3_another_epoch_fence_or_attempt_has_another_name(
    transaction: TransactionId, epoch: int, fence: int, attempt: int
) -> None:
    other = replace(transaction, epoch=epoch, fence=fence, attempt=attempt)
    assert (str(other) == str(transaction)) == (other == transaction)


def test_the_number_after_c_id_is_the_attempt_and_the_old_form_is_still_read() -> None:
    assert str(TransactionId(5, 2, 17, "abc", "p", "a")) == "p-w-a-id-abc.e5.f2:c_id=17"
    assert TransactionId.parse("p-w-a-id-abc.2.17:c_id=5") == TransactionId(
        5, 2, 17, "abc", "p", "a", has_old_form=True
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "p-w-a-id-abc.1.1",
        "p-w-a-id-xyz.1.1:c_id=1",
        "p-w-a-id-abc.1:c_id=1",
        "p-w-a-id-abc.1.1:c_id=x",
        "p-w-a-id-abc.1.1:c_id=1\n",
        "p-w-a-id-abc.-1.1:c_id=1",
        "a:b-w-a-id-abc.1.1:c_id=1",
        "p-w--id-abc.1.1:c_id=",
        "p-w-a-id-abc.e1.f1",
        "p-w-a-id-abc.e1.1:c_id=1",
        "p-w-a-id-abc.e1.f1.1:c_id=1",
        "p-w-a-id-abc.ex.f1:c_id=1",
        "p-w-a-id-abc.e1.f1:c_id=1\n",
    ],
)
def test_a_name_of_another_form_is_not_a_transaction_id(text: str) -> None:
    assert TransactionId.parse(text) is None
