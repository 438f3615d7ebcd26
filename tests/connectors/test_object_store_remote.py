"""The properties of an object store that the lake sinks rely on: durable create-only writes, and one sentence for each
refusal."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from procession.connectors.delta_table import DeltaLakeTable
from procession.connectors.object_store_remote import RemoteStore
from procession.connectors.parquet_output import LakeTable
from procession.connectors.parquet_sink import LakeOptions, open_parquet, run_lake_sink
from procession.errors import DiskError, StorageError
from tests.certificates import EXPIRED, Authority
from tests.systems.s3_file_server import S3FileServer
from tests.systems.s3_server import needs_s3

pytestmark = needs_s3

RACERS = 4


@pytest.fixture(scope="module")
def server() -> Iterator[S3FileServer]:
    with S3FileServer() as server:
        yield server


@pytest.fixture
def environment(server: S3FileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)


@contextmanager
def answering(
    monkeypatch: pytest.MonkeyPatch, status: int, code: str, certificate: tuple[Path, Path] | None = None
) -> Iterator[RemoteStore]:
    """Serve a store that answers each request with this error, in the form that S3 documents."""

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_response(status)
            self.end_headers()

        def do_PUT(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.do_GET()

        def do_GET(self) -> None:
            body = f"<Error><Code>{code}</Code><Message>refused</Message></Error>".encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        scheme = "http" if certificate is None else "https"
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"{scheme}://127.0.0.1:{server.server_port}")
        for name in ("AWS_REGION", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.setenv(name, "test")
        monkeypatch.setattr("procession.connectors.object_store_remote.RETRIES_MAX", 0)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield RemoteStore("s3://bucket/t")
        finally:
            server.shutdown()
            thread.join()


def test_a_wrong_clock_is_reported_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    with answering(monkeypatch, 403, "RequestTimeTooSkewed") as store, pytest.raises(StorageError) as caught:
        store.create("a.json", b"one")
    assert "the clock of this machine differs too much" in caught.value.sentence
    assert not isinstance(caught.value, DiskError), "the error asks the operator to act"


@pytest.mark.parametrize("open_table", [open_parquet, DeltaLakeTable])
def test_a_sink_does_not_start_where_it_may_not_read(
    open_table: Callable[[str], LakeTable], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with answering(monkeypatch, 403, "") as store, pytest.raises(StorageError) as caught:
        run_lake_sink(tmp_path, lambda: open_table(store.url), LakeOptions(), "127.0.0.1:0")
    assert "Cannot use s3://bucket/t: it denies the access." in caught.value.sentence
    assert "AWS_ACCESS_KEY_ID" in caught.value.explain()


def test_a_full_store_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with answering(monkeypatch, 507, "XMinioStorageFull") as store, pytest.raises(DiskError) as caught:
        store.create("a.json", b"one")
    assert "it has no room left" in caught.value.sentence


def test_a_certificate_is_trusted_only_if_its_authority_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    with answering(monkeypatch, 403, "AccessDenied", authority.issue()) as store, pytest.raises(StorageError) as caught:
        store.create("a.json", b"one")
    assert "its certificate is not trusted" in caught.value.sentence
    assert "clock" in caught.value.next_step
    assert not isinstance(caught.value, DiskError), "the error asks the operator to act"
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.ca))
    with answering(monkeypatch, 403, "AccessDenied", authority.issue()) as store, pytest.raises(StorageError) as caught:
        store.create("a.json", b"one")
    assert "it denies the access" in caught.value.sentence, "the request must have reached the store"


def test_an_expired_certificate_is_refused_and_names_the_clock(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    expired = authority.issue(not_after=EXPIRED)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.ca))
    with answering(monkeypatch, 403, "AccessDenied", expired) as store, pytest.raises(StorageError) as caught:
        store.create("a.json", b"one")
    assert "its certificate has expired" in caught.value.sentence
    assert "clock" in caught.value.next_step
    assert not isinstance(caught.value, DiskError), "the error asks the operator to act"


def race(write: Callable[[int, str], bool], reader: RemoteStore, names: list[str]) -> None:
    """All writers write each name at once. One of them succeeds, and what it wrote is read."""
    together = threading.Barrier(RACERS)

    def at_once(number: int, name: str) -> bool:
        together.wait()
        return write(number, name)

    with ThreadPoolExecutor(RACERS) as threads:
        for name in names:
            written = list(threads.map(at_once, range(RACERS), [name] * RACERS))
            assert written.count(True) == 1
            assert reader.read(name, 100) == f"writer {written.index(True)}".encode()


@pytest.mark.slow
@pytest.mark.usefixtures("environment")
def test_one_of_several_writers_creates_a_file_and_the_others_learn_that_it_is_there(server: S3FileServer) -> None:
    stores = [RemoteStore(f"s3://{server.bucket()}/t") for _ in range(RACERS)]

    def create(number: int, name: str) -> bool:
        return stores[number].create(name, f"writer {number}".encode())

    race(create, stores[0], [f"{number}.json" for number in range(20)])


@pytest.mark.slow
@pytest.mark.usefixtures("environment")
def test_one_of_several_writers_publishes_a_file_under_a_name(server: S3FileServer) -> None:
    stores = [RemoteStore(f"s3://{server.bucket()}/t") for _ in range(RACERS)]
    for number, store in enumerate(stores):
        assert store.create(f"upload-{number}", f"writer {number}".encode())

    def publish(number: int, name: str) -> bool:
        return stores[number].publish(f"upload-{number}", name)

    race(publish, stores[0], [f"{number}.parquet" for number in range(10)])


@pytest.mark.slow
@pytest.mark.usefixtures("environment")
def test_an_object_is_a_file_that_a_killed_server_finds_again(server: S3FileServer) -> None:
    bucket = server.bucket()
    store = RemoteStore(f"s3://{bucket}/t")
    assert store.create("a.json", b"one")
    server.kill()
    assert (server.files / bucket / "t/a.json").read_bytes() == b"one"
    server.start()
    assert store.read("a.json", 100) == b"one"
    assert not store.create("a.json", b"two")
