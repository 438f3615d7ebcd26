"""`procession streams` with a real gateway."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from procession.cli.streams_table import ask, table, together
from tests.gateway.gateway_process import GatewayProcess
from tests.gateway.producer import Producer
from tests.walk import commands

ALL = 2**40


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[GatewayProcess]:
    gateway = GatewayProcess(tmp_path / "pipeline" / "gateway", {})
    (tmp_path / "pipeline").mkdir()
    gateway.start()
    yield gateway
    if gateway.process.poll() is None:
        gateway.kill()


def test_streams_are_shown_as_a_table_or_json_by_directory_or_address(gateway: GatewayProcess, tmp_path: Path) -> None:
    with Producer(gateway.listen) as producer, gateway.client() as control:
        producer.hello()
        producer.notify(7)
        producer.notify(1200)
        producer.messages(7, range(10))
        while (end := control.offer(1, 0, ALL, ALL).end) < 10:
            pass
        control.commit(1, 0, end - 4, {7: 5})
        producer.wait_committed(7, 5)
        shown = commands.run("streams", "--dir", tmp_path / "pipeline", "--json", cwd=tmp_path)
        rows = json.loads(shown.stdout)["streams"]
        assert [row["id"] for row in rows] == [7, 1200]
        first, second = rows
        assert {key: first[key] for key in ("name", "state", "owner", "committed", "seen")} == {
            "name": "stream 7",
            "state": "open",
            "owner": "gateway-0",
            "committed": 5,
            "seen": 9,
        }
        assert 4 <= first["lag"] <= 10, "exact to one step"
        assert first["rate"] > 0
        assert (second["committed"], second["seen"], second["lag"]) == (None, None, 0)
        address = json.loads((gateway.directory / "gateway.json").read_text())["control"]
        lines = commands.run("streams", "--gateway", address, cwd=tmp_path).stdout.splitlines()
        assert lines[0].split() == ["id", "name", "state", "owner", "committed", "seen", "lag", "rate"]
        assert lines[2].split()[:4] == ["1200", "stream", "1200", "open"]
        assert lines[3].startswith("2 streams (2 open), lag ")
        alone = commands.run("streams", "--dir", gateway.directory, "--json", cwd=tmp_path)
        assert [row["id"] for row in json.loads(alone.stdout)["streams"]] == [7, 1200]


def test_streams_beyond_the_size_of_one_reply_are_all_shown(gateway: GatewayProcess) -> None:
    with Producer(gateway.listen) as producer, gateway.client() as control:
        producer.hello()
        for stream_id in range(2500):
            producer.notify(stream_id)
        assert [row["id"] for row in control.streams()] == list(range(2500))


def test_the_only_pipeline_in_the_usual_place_is_found_and_one_of_two_must_be_named(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / ".procession" / name / "gateway").mkdir(parents=True)
        (tmp_path / ".procession" / name / "gateway" / "gateway.json").write_text("{}")
    two = commands.run("streams", cwd=tmp_path)
    assert two.returncode == 2
    assert ".procession/one, .procession/two" in two.stderr
    (tmp_path / ".procession" / "two" / "gateway" / "gateway.json").unlink()
    one = commands.run("streams", "--timeout-s", "0.2", cwd=tmp_path)
    assert one.returncode == 3
    assert "No gateway answers at .procession/one/gateway." in one.stderr


@pytest.mark.parametrize(
    ("arguments", "status", "sentence"),
    [
        (["--dir", "nowhere"], 3, "No gateway was ever started in nowhere."),
        (["--gateway", "127.0.0.1:1", "--timeout-s", "0.2"], 3, "No gateway answers at 127.0.0.1:1."),
        (["--gateway", "nonsense"], 2, "'nonsense' is not an address."),
        (["--gateway", "127.0.0.1:1", "--dir", "x"], 2, "--dir and --gateway exclude each other."),
        ([], 3, "There is no pipeline in .procession."),
    ],
)
def test_without_a_running_pipeline_one_sentence_with_a_next_step_is_printed(
    arguments: list[str], status: int, sentence: str, tmp_path: Path
) -> None:
    done = commands.run("streams", *arguments, cwd=tmp_path)
    assert done.returncode == status
    assert sentence in done.stderr
    assert "Next:" in done.stderr


@pytest.mark.parametrize(
    "command",
    [
        "status",
        "stop",
        "savepoint list",
        "savepoint create x",
        "state list",
        "rollback x",
        "traces --once",
        "dashboard",
    ],
)
def test_the_error_for_a_directory_without_a_pipeline_lists_the_existing_pipelines(
    command: str, tmp_path: Path
) -> None:
    (tmp_path / ".procession" / "one" / "gateway").mkdir(parents=True)
    (tmp_path / ".procession" / "one" / "gateway" / "gateway.json").write_text("{}")
    done = commands.run(*command.split(), "--dir", "nowhere", cwd=tmp_path)
    assert done.returncode == 3
    assert done.stderr == "error: There is no pipeline in nowhere.\n  Next: Give --dir one of: .procession/one.\n"
    assert not (tmp_path / "nowhere").exists()


def test_control_characters_in_a_peers_stream_name_are_not_printed() -> None:
    row = {"id": 1, "name": "\x1b[2Jx" + 100 * "y", "state": "open", "owner": "g", "committed": None, "seen": None}
    lines = list(table([{**row, "lag": 0, "rate": 0.0, "late": None}]))
    assert "\x1b" not in lines[1]
    assert len(lines[1]) < 100


def test_late_records_of_a_moved_stream_are_added_up_and_arrival_order_has_no_such_column() -> None:
    row = {"name": "s", "state": "open", "owner": "g", "committed": 5, "lag": 0, "rate": 0.0, "is_held": False}
    row |= {"frames": 2, "bytes": 20}
    of_one = [
        row | {"id": 1, "seen": 9, "late": 3},
        row | {"id": 1, "seen": 4, "late": 2, "owner": "h", "is_held": True},
    ]
    of_two = [row | {"id": 2, "seen": 7, "late": None}]
    rows = together([*of_one, *of_two])
    assert [(merged["owner"], merged["seen"], merged["late"]) for merged in rows] == [("h", 4, 5), ("g", 7, None)]
    assert "late" not in next(table(rows[1:]))
    assert next(table(rows)).endswith("late")


def test_a_stream_that_no_gateway_holds_is_listed_from_its_last_gateway() -> None:
    row = {"id": 1, "state": "closed", "committed": 5, "seen": 5, "lag": 0, "rate": 0.0, "late": None}
    heard = row | {"name": "", "owner": "gateway-0", "is_held": False, "frames": 0, "bytes": 0}
    had = heard | {"name": "s", "owner": "gateway-1", "frames": 6, "bytes": 60}
    (merged,) = together([heard, had])
    assert (merged["name"], merged["owner"], merged["frames"], merged["bytes"]) == ("s", "gateway-1", 6, 60)
    came_back = heard | {"seen": 7, "is_held": True, "frames": 2, "bytes": 20}
    (merged,) = together([came_back, had])
    assert (merged["name"], merged["owner"], merged["frames"], merged["bytes"]) == ("s", "gateway-0", 8, 80)


def test_repeated_polls_print_one_object_each(gateway: GatewayProcess, tmp_path: Path) -> None:
    with commands.running(
        "streams", "--dir", gateway.directory, "--json", "--watch", "--every-s", "0.1", cwd=tmp_path
    ) as watching:
        while watching.said.count('{"streams": [], "retired": 0}') < 3:
            assert watching.process.poll() is None, watching.said


def test_all_gateways_are_asked_and_the_holder_of_a_stream_is_its_owner(
    gateway: GatewayProcess, tmp_path: Path
) -> None:
    second = GatewayProcess(tmp_path / "pipeline" / "gateway-1", {"join": gateway.directory, "name": "gateway-1"})
    second.start()
    try:
        with Producer(gateway.listen) as one, Producer(second.listen) as other, gateway.client() as control:
            while [member["is_connected"] for member in control.gateways()] != [True, True]:
                pass
            one.hello()
            other.hello()
            assert one.notify(7).success
            assert other.notify(8).success
            assert not other.notify(7).success
            one.messages(7, range(3))
            other.messages(8, range(5))
            owners: list[tuple[int, str, int]] = []
            while owners != [(7, "gateway-0", 3), (8, "gateway-1", 5)]:
                rows = ask(tmp_path / "pipeline" / "gateway", cookie=b"", timeout_s=20)
                owners = [(row["id"], row["owner"], row["lag"]) for row in rows]
            alone = ask(second.directory, cookie=b"", timeout_s=20)
            assert [row["id"] for row in alone] == [8], "a gateway that does not lead lists its own streams only"
    finally:
        second.kill()
