"""The supervisor with real processes: restarts, last log lines, the order of stopping, and no process remains."""

from __future__ import annotations

import dataclasses
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from procession.exit_status import Status
from procession.supervisor import cleanup
from procession.supervisor.part import Part
from procession.supervisor.restart_policy import RestartPolicy
from procession.supervisor.supervisor import PartFailed, Supervisor

PATIENCE_S = 30.0
QUICK = RestartPolicy(delay_first_s=0.01, delay_max_s=0.02, deaths_max=3)
FOREVER = "import signal\nwhile True: signal.pause()"
# Writes its pid only when it handles signals. The supervisor must find the processes that it leaves.
TELL = "import os, pathlib\npathlib.Path(PLACE + '.new').write_text(TEXT)\nos.rename(PLACE + '.new', PLACE)\n"


def python(code: str) -> tuple[str, ...]:
    return (sys.executable, "-I", "-S", "-c", code)


def telling(place: Path, text: str = "str(os.getpid())") -> str:
    return TELL.replace("PLACE", repr(str(place))).replace("TEXT", text)


def part(name: str, code: str, report: Path | None = None, **options: object) -> Part:
    if report is not None:
        options["is_ready"] = lambda pid: report.exists() and report.read_text().split()[:1] == [str(pid)]
    return Part(name, python(code), **options)  # type: ignore[arg-type]


def watch_until(supervisor: Supervisor, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "the condition was not met"
        assert supervisor.watch(0.02)


def is_gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def wait_for_end(pids: list[int]) -> None:
    for pid in pids:
        try:
            ended = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        assert select.select([ended], [], [], PATIENCE_S)[0], f"process {pid} lives on"
        os.close(ended)


@pytest.fixture
def sentences() -> list[str]:
    return []


@pytest.fixture
def supervisor(tmp_path: Path, sentences: list[str]) -> Iterator[Supervisor]:
    with Supervisor(tmp_path / "logs", QUICK, sentences.append) as supervisor:
        yield supervisor


def test_a_killed_part_is_restarted_and_the_kill_does_not_count_as_a_failure(
    supervisor: Supervisor, sentences: list[str]
) -> None:
    supervisor.start(part("gateway", FOREVER))
    for times in range(1, QUICK.deaths_max + 2):
        before = supervisor.pid("gateway")
        supervisor.kill("gateway")
        watch_until(supervisor, lambda times=times: supervisor.restarts == {"gateway": times})  # type: ignore[misc]
        assert supervisor.pid("gateway") != before
    assert "gateway was ended by signal 9 (Killed); restarting it" in sentences


def test_a_part_that_dies_too_often_ends_the_pipeline_with_its_last_log_lines(supervisor: Supervisor) -> None:
    supervisor.start(part("sink", "import sys; sys.exit('the disk is upside down')"))
    with pytest.raises(PartFailed, match=r"sink failed 3 times within 120 s; it ended with status 1") as failure:
        watch_until(supervisor, lambda: False)
    assert failure.value.sentence.count("the disk is upside down") == 1
    assert supervisor.restarts == {"sink": QUICK.deaths_max - 1}


def test_a_fatal_error_ends_the_pipeline_at_once_and_is_shown_once(supervisor: Supervisor) -> None:
    error = "error: The port is in use.\n  Next: choose another."
    supervisor.start(part("gateway", f"import sys; print('noise'); print({error!r}); sys.exit({int(Status.ACT)})"))
    with pytest.raises(PartFailed) as failure:
        watch_until(supervisor, lambda: False)
    assert failure.value.explain() == "The port is in use.\n  Next: choose another."
    assert failure.value.part == "gateway"
    assert supervisor.restarts == {"gateway": 0}


def test_the_options_in_the_advice_of_a_connector_are_named_as_its_url_has_them(supervisor: Supervisor) -> None:
    error = "error: A --record is refused.\n  Next: Give --dead-letters TABLE or --mode token, --listen or --tls-key."
    sink = part("sink", f"import sys; print({error!r}); sys.exit({int(Status.ACT)})")
    supervisor.start(dataclasses.replace(sink, is_of_url=True))
    with pytest.raises(PartFailed) as failure:
        watch_until(supervisor, lambda: False)
    assert failure.value.explain() == (
        "A --record is refused.\n  Next: Give --dead-letters TABLE or --mode token, --listen or --tls-key."
        " In the URL of an app, write dead_letters= for --dead-letters and mode= for --mode."
    )


def test_a_missing_program_is_reported_in_one_sentence(supervisor: Supervisor) -> None:
    with pytest.raises(PartFailed, match=r"The sink could not be started: .*no-such-program"):
        supervisor.start(Part("sink", ("no-such-program",)))


def test_a_part_that_ends_with_status_0_is_done(supervisor: Supervisor) -> None:
    supervisor.start(part("gateway", FOREVER))
    supervisor.start(part("source", "pass"))
    assert supervisor.wait_done("source")
    assert supervisor.restarts == {"gateway": 0, "source": 0}
    assert supervisor.pid("source") is None


def test_watching_ends_when_all_parts_are_done(supervisor: Supervisor) -> None:
    supervisor.start(part("source", "pass"))
    began = time.monotonic()
    while supervisor.watch(PATIENCE_S):
        pass
    assert time.monotonic() - began < PATIENCE_S


def test_a_part_that_is_never_ready_is_restarted_and_finally_given_up(supervisor: Supervisor) -> None:
    supervisor.start(part("driver", FOREVER, is_ready=lambda _pid: False, ready_timeout_s=0.05))
    with pytest.raises(PartFailed, match=r"driver failed 3 times .* it was not ready within 0.05 s"):
        supervisor.wait_ready()


def test_readiness_is_asked_of_each_start(supervisor: Supervisor, tmp_path: Path) -> None:
    report = tmp_path / "told"
    supervisor.start(part("gateway", telling(report) + FOREVER, report))
    assert supervisor.wait_ready("gateway")
    supervisor.kill("gateway")
    watch_until(supervisor, lambda: supervisor.restarts == {"gateway": 1})
    assert supervisor.wait_ready("gateway")
    assert report.read_text() == str(supervisor.pid("gateway"))


# Like Spark's driver: a child in its session, one in its own process group, one in its own session with a child.
FAMILY = f"""
import os, subprocess, sys
forever = [sys.executable, "-I", "-S", "-c", {FOREVER!r}]
nest = [sys.executable, "-I", "-S", "-c", '''
import subprocess, sys
print(subprocess.Popen(sys.argv[1:]).pid, flush=True)
sys.stdout.close()
import signal
while True: signal.pause()
''']
deep = subprocess.Popen(nest + forever, start_new_session=True, stdout=subprocess.PIPE, text=True)
family = [deep.pid, int(deep.stdout.readline())]
family += [subprocess.Popen(forever).pid, subprocess.Popen(forever, process_group=0).pid]
"""


def family_code(report: Path) -> str:
    return FAMILY + telling(report, '" ".join(map(str, [os.getpid(), *family]))') + FOREVER


def pids_in(report: Path) -> list[int]:
    return [int(pid) for pid in report.read_text().split()]


def test_all_processes_of_a_dead_driver_are_killed_before_the_next_one_starts(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    report = tmp_path / "told"
    supervisor.start(part("driver", family_code(report), report))
    assert supervisor.wait_ready()
    family = pids_in(report)
    assert len(family) == 5
    assert not any(map(is_gone, family))
    supervisor.kill("driver")
    watch_until(supervisor, lambda: supervisor.restarts == {"driver": 1})
    assert all(map(is_gone, family))


def test_no_process_and_no_port_is_left(tmp_path: Path) -> None:
    report = tmp_path / "told"
    listen = "import socket; server = socket.create_server(('127.0.0.1', 0))\n"
    with Supervisor(tmp_path / "logs", QUICK) as supervisor:
        code = listen + telling(report, "f'{os.getpid()} {server.getsockname()[1]}'") + FOREVER
        supervisor.start(part("gateway", code, report))
        supervisor.start(part("driver", family_code(tmp_path / "family"), tmp_path / "family"))
        assert supervisor.wait_ready()
        pid, port = pids_in(report)
    assert all(map(is_gone, [pid, *pids_in(tmp_path / "family")]))
    socket.create_server(("127.0.0.1", port)).close()


def test_parts_stop_by_rank_and_each_in_its_own_time(tmp_path: Path) -> None:
    stopped = tmp_path / "stopped"
    code = (
        "import signal, sys\n"
        f"def stop(*_):\n    print(NAME, file=open({str(stopped)!r}, 'a'))\n    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, stop)\n"
    )
    with Supervisor(tmp_path / "logs", QUICK) as supervisor:
        for name, rank in {"sink": 4, "gateway": 3, "source": 1, "driver": 2}.items():
            report = tmp_path / name
            supervisor.start(
                part(name, code.replace("NAME", repr(name)) + telling(report) + FOREVER, report, stop_rank=rank)
            )
        assert supervisor.wait_ready()
    assert stopped.read_text().split() == ["source", "driver", "gateway", "sink"]


def test_a_part_that_does_not_stop_in_time_is_killed(tmp_path: Path, sentences: list[str]) -> None:
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    with Supervisor(tmp_path / "logs", QUICK, sentences.append) as supervisor:
        report = tmp_path / "deaf"
        supervisor.start(part("deaf", deaf + telling(report) + FOREVER, report, stop_timeout_s=0.05))
        supervisor.start(part("frozen", FOREVER, stop_timeout_s=0.05))
        assert supervisor.wait_ready()
        pids = [supervisor.pid(name) or 0 for name in ("deaf", "frozen")]
        os.kill(pids[1], signal.SIGSTOP)
        os.waitid(os.P_PID, pids[1], os.WSTOPPED | os.WNOWAIT)
    assert all(map(is_gone, pids))
    assert sentences == [f"{name} did not stop in time and was killed" for name in ("deaf", "frozen")]


def test_a_warden_that_is_killed_is_replaced(supervisor: Supervisor) -> None:
    supervisor.start(part("gateway", FOREVER))
    first = supervisor._cleanup_process.pid
    os.kill(first, signal.SIGKILL)
    watch_until(supervisor, lambda: supervisor._cleanup_process.pid != first)
    assert is_gone(first)


# --- the supervisor as a process of its own

PROGRAM = """
import signal
import sys
from pathlib import Path
from procession.supervisor.part import Part
from procession.supervisor.supervisor import Supervisor

signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may have been started by nohup
place, code = Path(sys.argv[1]), sys.argv[2]
told = place / "told"
with Supervisor(place / "logs") as supervisor:
    argv = (sys.executable, "-I", "-S", "-c", code)
    supervisor.start(Part("driver", argv, is_ready=lambda pid: told.exists(), stop_timeout_s=float(sys.argv[3])))
    if supervisor.wait_ready():
        print("ready", flush=True)
    while supervisor.watch(60):
        pass
sys.exit(128 + supervisor.stop_signal)
"""


def supervising_program(tmp_path: Path, code: str, stop_timeout_s: float) -> subprocess.Popen[str]:
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(tmp_path), code, str(stop_timeout_s)], stdout=subprocess.PIPE, text=True
    )
    assert program.stdout
    assert program.stdout.readline() == "ready\n"
    return program


def marked_family(leader: int) -> list[int]:
    environment = Path(f"/proc/{leader}/environ").read_bytes().split(b"\0")
    mark = (
        next(entry for entry in environment if entry.startswith(cleanup.VARIABLE.encode())).decode().partition("=")[2]
    )
    return [process.pid for process in cleanup.find(mark)]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_stops_everything_at_once(tmp_path: Path, number: signal.Signals) -> None:
    with supervising_program(tmp_path, family_code(tmp_path / "told"), PATIENCE_S) as program:
        family = pids_in(tmp_path / "told")
        program.send_signal(number)
        assert program.wait(PATIENCE_S) == 128 + number
        assert all(map(is_gone, family))


def test_a_second_interrupt_does_not_wait_for_parts(tmp_path: Path) -> None:
    report, request = tmp_path / "told", tmp_path / "asked"
    os.mkfifo(request)
    deaf = f"import signal\nsignal.signal(signal.SIGTERM, lambda *_: open({str(request)!r}, 'w').close())\n"
    with supervising_program(tmp_path, deaf + telling(report) + FOREVER, 10 * PATIENCE_S) as program:
        program.send_signal(signal.SIGINT)
        request.read_text()  # which waits until the part was asked
        program.send_signal(signal.SIGINT)
        assert program.wait(PATIENCE_S) == 128 + signal.SIGINT
        assert all(map(is_gone, pids_in(report)))


def test_when_the_supervisor_is_killed_no_process_of_its_parts_survives(tmp_path: Path) -> None:
    with supervising_program(tmp_path, family_code(tmp_path / "told"), PATIENCE_S) as program:
        family = pids_in(tmp_path / "told")
        assert sorted(marked_family(family[0])) == sorted(family)
        program.kill()
        wait_for_end(family)
