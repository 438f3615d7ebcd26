"""The sources as commands, with a real gateway on which the test commits: whole runs, signals and messages."""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from procession.address import Address, parse_address
from procession.connectors.file_source import stream_id_of
from procession.connectors.generator_source import GeneratorSource, Recipe
from procession.exit_status import Status
from procession.sdk.source_records import Stream
from tests.connectors.commands import Command, command, until
from tests.sdk.gateways import LivingGateway, living_gateway

STDIN, TCP, UDP = (Stream.named(name).id for name in ("stdin", "tcp-lines", "udp"))


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[LivingGateway]:
    with living_gateway(tmp_path) as living:
        yield living


# Files


def test_many_framed_files_by_a_pattern_are_sent_and_the_summary_is_json(
    tmp_path: Path, gateway: LivingGateway
) -> None:
    for name in ("a.bin", "b.bin"):
        (tmp_path / name).write_bytes(b"".join(len(text).to_bytes(4) + text for text in (b"one", b"", b"two\n")))
    arguments = ["file", str(tmp_path / "*.bin"), "--framing", "framed", "--to", gateway.listen, "--json", "--stamp"]
    with command(*arguments) as source:
        assert source.status() == 0, source.said
        last = json.loads(source.printed())
    assert last["is_done"]
    assert (last["acknowledged"], last["streams"]) == (6, 2)
    for name in ("a.bin", "b.bin"):
        rows = gateway.rows(stream_id_of(tmp_path / name))
        assert [row.payload for row in rows] == [b"one", b"", b"two\n"]
        assert all(row.event_time for row in rows)


def test_files_of_one_stream_are_sent_in_the_order_of_their_names_with_the_times_of_a_field(
    tmp_path: Path, gateway: LivingGateway
) -> None:
    for name, times in (("b", [30, 40]), ("a", [10, 20])):
        (tmp_path / f"{name}.jsonl").write_text("".join(f'{{"at": {time}}}\n' for time in times))
    arguments = ["file", str(tmp_path / "*.jsonl"), "--one-stream", "days", "--state", str(tmp_path / "state")]
    arguments += ["--event-time-field", "at", "--event-time-unit", "ms", "--to", gateway.listen]
    with command(*arguments) as source:
        assert source.status() == 0, source.said
    rows = gateway.rows(Stream.named("days").id)
    assert [row.event_time for row in rows] == [10_000_000, 20_000_000, 30_000_000, 40_000_000]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--one-stream", "days"], "--one-stream takes one pattern and needs --state"),
        (["--one-stream", "days", "--state", "s", "other"], "--one-stream takes one pattern and needs --state"),
        (["--stamp", "--event-time-field", "at"], "--stamp and --event-time-field exclude each other"),
    ],
)
def test_options_that_exclude_each_other_are_reported_in_one_sentence(
    tmp_path: Path, options: list[str], sentence: str
) -> None:
    with command("file", str(tmp_path / "f"), *options, "--to", "127.0.0.1:1") as source:
        assert source.status() == Status.USAGE, source.said
        assert sentence in source.said


def test_a_followed_file_is_sent_as_it_grows_over_two_runs(tmp_path: Path, gateway: LivingGateway) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"one\n")
    arguments = ["file", str(path), "--follow", "--poll-s", "0.01", "--to", gateway.listen]
    stream = stream_id_of(path)
    for life in range(2):
        with command(*arguments) as source, path.open("ab") as log:
            for number in range(3):
                log.write(b"%d %d\n" % (life, number))
                log.flush()
                until(lambda line=b"%d %d" % (life, number): gateway.payloads(stream)[-1:] == [line])
            source.signal(signal.SIGINT)
            assert source.status() == 1
            assert "stopped before the end" in source.said
    assert b"\n".join(gateway.payloads(stream)) + b"\n" == path.read_bytes()


@pytest.mark.parametrize(
    ("arguments", "status", "sentence"),
    [
        (["file", "nowhere.txt"], 3, "Cannot read nowhere.txt: there is no such file"),
        (["file", "nowhere*.txt"], 3, "No file matches nowhere*.txt"),
        (["file", "README.md", "--framing", "lnes"], 2, "'lnes' is not a framing"),
        (["file", "README.md", "--framing", "fixed:0"], 2, "'fixed:0' has no valid record size"),
        (["file", "README.md", "--to", "7100"], 2, "'7100' is not an address"),
        (
            ["file", "README.md", "--to", "127.0.0.1:1", "--patience-s", "0.01"],
            3,
            "No gateway at 127.0.0.1:1 opened a session",
        ),
        (["file", "README.md", "--rate", "0"], 2, "0.0 records per second is not a rate"),
        (["fil", "README.md"], 2, "Did you mean 'file'?"),
        (["stdin"], 2, "Standard input cannot be read twice"),
        (["stdin", "--spool", "x", "--best-effort"], 2, "--spool and --best-effort exclude each other"),
        (["stdin", "--sool", "x"], 2, "--spool"),
        (["tcp-lines", "--listen", "127.0.0.1:0"], 2, "A TCP connection cannot be read twice"),
        (["tcp-lines", "--best-effort"], 2, "--listen"),
        (["tcp-lines", "--best-effort", "--listen", "x"], 2, "'x' is not an address"),
        (["udp"], 2, "--listen"),
        (["udp", "--listen", "192.0.2.1:7"], 3, "Cannot receive datagrams at 192.0.2.1:7"),
        (["generator", "--size", "99999999"], 2, "99999999 bytes in a record cannot be generated"),
    ],
)
def test_an_invalid_source_is_reported_in_one_sentence_with_a_next_step(
    arguments: list[str], status: int, sentence: str
) -> None:
    with command(*arguments) as source:
        assert source.status() == status
        assert sentence in source.said
        assert "\n  Next: " in source.said or "Usage:" in source.said
        assert "Traceback" not in source.said


# Standard input


def test_standard_input_in_a_spool_survives_sigkill_and_the_next_run_continues(
    tmp_path: Path, gateway: LivingGateway
) -> None:
    arguments = ["stdin", "--spool", str(tmp_path / "spool"), "--to", gateway.listen]
    gateway.hold_commits()
    with command(*arguments) as source:
        source.stdin.write(b"".join(b"%d\n" % number for number in range(1000)))
        source.stdin.flush()
        with gateway.client() as client:
            until(lambda: client.status()["next_sequence"] == 1000)
        source.signal(signal.SIGKILL)
        source.status()
    gateway.kill()  # uncommitted records are sent again, unless the gateway already has them
    gateway.start()
    gateway.let_commit()
    with command(*arguments) as source:
        source.stdin.write(b"1000\nthe last")
        source.stdin.close()
        assert source.status() == 0, source.said
    assert gateway.payloads(STDIN) == [*(b"%d" % number for number in range(1001)), b"the last"]


@contextmanager
def asked_to_stop(gateway: LivingGateway) -> Iterator[Command]:
    """Start a source without a spool, and ask it to stop while two records are not committed."""
    gateway.hold_commits()
    with command("stdin", "--best-effort", "--to", gateway.listen) as source:
        source.stdin.write(b"one\ntwo\n")
        source.stdin.flush()
        with gateway.client() as client:
            until(lambda: client.status()["next_sequence"] == 2)
        source.signal()
        source.wait_for("program.stopping")
        yield source


def test_standard_input_by_best_effort_waits_for_its_commits_when_it_is_asked_to_stop(gateway: LivingGateway) -> None:
    with asked_to_stop(gateway) as source:
        gateway.let_commit()
        assert source.status() == 0, source.said
    assert gateway.payloads(STDIN) == [b"one", b"two"]


def test_standard_input_by_best_effort_reports_the_records_that_a_second_signal_gives_up(
    gateway: LivingGateway,
) -> None:
    with asked_to_stop(gateway) as source:
        source.signal()
        assert source.status() == 1
        lost = source.wait_for("source.records_lost")
        assert "records=2" in lost
        assert "2 records sent and not acknowledged" in source.said


def test_a_signal_while_the_gateway_is_away_leaves_received_records_in_the_spool(tmp_path: Path) -> None:
    with command("stdin", "--spool", str(tmp_path / "spool"), "--to", "127.0.0.1:1") as source:
        source.stdin.write(b"one\ntwo\n")
        source.stdin.close()
        source.wait_for("source.waiting")
        until(lambda: any(path.stat().st_size > 100 for path in (tmp_path / "spool").glob("*.segment")))
        source.signal()
        assert source.status() == 1
        assert "records=2" in source.wait_for("source.records_spooled")


def test_standard_input_that_ends_within_a_record_sends_the_records_before_and_reports_it(
    gateway: LivingGateway,
) -> None:
    with command("stdin", "--best-effort", "--framing", "fixed:3", "--to", gateway.listen) as source:
        source.stdin.write(b"onetwosi")
        source.stdin.close()
        assert source.status() == 3
        assert "Standard input ended in the middle of the record at byte 6" in source.said
    assert gateway.payloads(STDIN) == [b"one", b"two"]


# Lines over TCP


def is_closed(peer: socket.socket) -> bool:
    try:
        return not peer.recv(1)
    except ConnectionError:
        return True


def test_lines_of_many_connections_are_one_stream_and_a_bad_peer_ends_only_itself(
    tmp_path: Path, gateway: LivingGateway
) -> None:
    arguments = ["--listen", "127.0.0.1:0", "--line-bytes-max", "100", "--connections-max", "3", "--to", gateway.listen]
    with command("tcp-lines", "--spool", str(tmp_path / "spool"), *arguments) as source:
        place = parse_address(source.wait_for("listening").partition("address=")[2].strip())
        one, two, bad = (socket.create_connection(place) for _ in range(3))
        one.sendall(b"a1\na2\na")
        two.sendall(b"b1\n")
        with suppress(ConnectionError):  # it may be closed before it has sent everything
            bad.sendall(b"x" * 200_000)
        assert is_closed(bad), "a line that is too long ends its connection"
        until(lambda: len(gateway.payloads(TCP)) == 3)
        third = socket.create_connection(place)
        many = [socket.create_connection(place) for _ in range(2)]
        assert is_closed(many[-1]), "one connection too many is closed"
        one.sendall(b"3\n")
        third.sendall(b"no newline")
        for peer in (one, two, third, bad, *many):
            peer.close()
        until(lambda: len(gateway.payloads(TCP)) == 5)
        payloads = gateway.payloads(TCP)
        assert [line for line in payloads if line.startswith(b"a")] == [b"a1", b"a2", b"a3"]
        assert sorted(payloads) == [b"a1", b"a2", b"a3", b"b1", b"no newline"]
        source.signal()
        assert source.status() == 1


# Datagrams


def test_datagrams_are_sent_by_best_effort_until_the_source_is_stopped(gateway: LivingGateway) -> None:
    with command("udp", "--listen", "127.0.0.1:0", "--to", gateway.listen, "--json") as source:
        place = parse_address(source.wait_for("listening").partition("address=")[2].strip())
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
            for number in range(100):
                peer.sendto(b"datagram %d" % number, place)
            until(lambda: len(gateway.payloads(UDP)) == 100)
        source.signal()
        assert source.status() == 0, source.said
        last = json.loads(source.printed())
    assert (last["sent"], last["ephemeral"], last["acknowledged"]) == (100, 100, 0)
    assert gateway.payloads(UDP) == [b"datagram %d" % number for number in range(100)]


def unread_bytes(place: Address) -> int:
    """Return the number of bytes that the kernel holds for the receiver: a datagram that was not read is not
    counted."""
    for line in Path("/proc/net/udp").read_text().splitlines()[1:]:
        _, local, _, _, queues, *_ = line.split()
        if int(local.partition(":")[2], 16) == place.port:
            return int(queues.partition(":")[2], 16)
    raise AssertionError("nobody receives there")


def test_datagrams_above_the_limit_are_dropped_and_counted() -> None:
    arguments = ["udp", "--listen", "127.0.0.1:0", "--bytes-max", "1000", "--to", "127.0.0.1:1"]
    with command(*arguments) as source:
        place = parse_address(source.wait_for("listening").partition("address=")[2].strip())
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
            for _ in range(100):
                peer.sendto(b"x" * 100, place)
        until(lambda: unread_bytes(place) == 0)
        source.wait_for("source.waiting")
        source.signal()
        source.wait_for("program.stopping")
        source.signal()
        assert source.status() == 1
        dropped = source.wait_for("source.datagrams_dropped")
        assert int(dropped.partition("dropped=")[2].split()[0]) >= 94


# The generator


def test_the_generator_sends_what_it_prints_and_continues_where_it_was_stopped(gateway: LivingGateway) -> None:
    shape = ["generator", "--size", "40", "--keys", "3", "--seed", "7"]
    with command(*shape, "--to", gateway.listen, "--rate", "500") as source:
        (stream,) = GeneratorSource(Recipe(seed=7)).streams()
        until(lambda: gateway.payloads(stream.id))
        source.signal()
        source.status()
    with command(*shape, "--to", gateway.listen, "--records", "50000") as source:
        assert source.status() == 0, source.said
    with command(*shape, "--records", "50000", "--print") as source:
        printed = source.printed().splitlines()
    rows = gateway.rows(stream.id)
    assert [row.payload.decode() for row in rows] == printed
    assert {row.key for row in rows} == {b"key-0", b"key-1", b"key-2"}
