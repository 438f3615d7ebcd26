"""Several gateways, with random events in any order: sessions, messages between them, lost links, crashes and
epochs."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.gateway.several import Producer, Several

STREAMS = st.integers(1, 3)
NODES = st.integers(0, 2)


class AnyOrder(RuleBasedStateMachine):
    """Runs sessions, messages, lost links, crashes and epochs in any order.

    No stream is held twice, and the output of each stream is 0, 1, 2, …
    """

    def __init__(self) -> None:
        super().__init__()
        self.several = Several(3)
        self.all: list[Producer] = []

    @property
    def producers(self) -> list[Producer]:
        return [producer for producer in self.all if not producer.is_over]

    @rule(number=NODES, stream_id=STREAMS)
    def open(self, number: int, stream_id: int) -> None:
        self.all.append(self.several[number].open(stream_id))

    @precondition(lambda self: any(one.is_open for one in self.producers))
    @rule(choice=st.integers(0, 100), count=st.integers(1, 3))
    def send(self, choice: int, count: int) -> None:
        able = [producer for producer in self.producers if producer.is_open]
        for _ in range(count):
            able[choice % len(able)].send()

    @precondition(lambda self: any(one.is_open for one in self.producers))
    @rule(choice=st.integers(0, 100))
    def end(self, choice: int) -> None:
        able = [producer for producer in self.producers if producer.is_open]
        able[choice % len(able)].end()

    @precondition(lambda self: self.producers)
    @rule(choice=st.integers(0, 100))
    def close(self, choice: int) -> None:
        self.producers[choice % len(self.producers)].close()

    @precondition(lambda self: any(one.answers and not one.is_open for one in self.producers))
    @rule(choice=st.integers(0, 100))
    def try_again(self, choice: int) -> None:
        able = [producer for producer in self.producers if producer.answers and not producer.is_open]
        able[choice % len(able)].notify()

    @rule(number=NODES)
    def receive(self, number: int) -> None:
        self.several.receive(self.several[number])

    @rule(number=NODES)
    def answer(self, number: int) -> None:
        self.several.answer(self.several[number])

    @rule(number=NODES)
    def lose(self, number: int) -> None:
        if number:
            self.several.lose(self.several[number])

    @rule(number=NODES)
    def join(self, number: int) -> None:
        self.several.join(self.several[number])

    @rule()
    def settle(self) -> None:
        self.several.settle()

    @rule(number=NODES)
    def crash(self, number: int) -> None:
        self.several.crash(number)

    @rule(number=NODES)
    def sync(self, number: int) -> None:
        """Write all rows of a gateway to disk, without an epoch."""
        node = self.several[number]
        node.durable = len(node.rows)

    @rule(number=NODES)
    def retire(self, number: int) -> None:
        self.several[number].retire()

    @rule(number=NODES, share=st.sampled_from([0.0, 0.5, 1.0]))
    def die_while_retiring(self, number: int, share: float) -> None:
        """Crash a gateway with none, a part or all of the file on disk, before the snapshot that names it."""
        self.several[number].retire(share)

    @rule(told=st.sets(NODES))
    def take(self, told: set[int]) -> None:
        self.several.take(tells=told.__contains__)

    @rule(number=NODES)
    def tell(self, number: int) -> None:
        self.several.tell(number)

    @invariant()
    def holds(self) -> None:
        self.several.check()

    def teardown(self) -> None:
        """Check that nothing leaks: when all sessions are closed and all is committed, no gateway holds a stream."""
        for producer in self.producers:
            producer.close()
        self.several.settle()
        self.several.take()
        self.several.settle()
        self.several.check()
        assert self.several.registry.active == {}
        for node in self.several.nodes:
            assert node.state.claims is not None
            assert len(node.state.claims) == 0


AnyOrder.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestAnyOrder = AnyOrder.TestCase
