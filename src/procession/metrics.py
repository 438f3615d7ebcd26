"""Metrics: serves figures to Prometheus at an HTTP port.

Invariant: a producer of figures only defines metrics, not how they are served. Figures are collected when Prometheus
reads them, and cost nothing otherwise. One reader is served at a time, in a separate thread. prometheus-client is
imported only if the port is used.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

POLL_S = 0.1
"""Maximum time until a shutdown is noticed."""

READER_TIMEOUT_S = 5.0
"""Time after which a silent reader is disconnected."""


PATH = "/metrics"
METHODS = ("GET", "HEAD")


class Metric(NamedTuple):
    """One metric: its name, kind, help text and values by label values."""

    name: str
    kind: Literal["counter", "gauge"]
    help: str
    labels: tuple[str, ...]
    values: Sequence[tuple[tuple[str, ...], float]]


Figures = Callable[[], Iterable[Metric]]


class MetricsServer:
    """Serves the figures of `ask` at `/metrics`. `ask` is called in the server's thread."""

    def __init__(self, listening: socket.socket, ask: Figures) -> None:
        self._server = _Server(listening, ask)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(POLL_S,), name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening. Waits for the current reader, at most for its timeout."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(WSGIServer):
    def __init__(self, listening: socket.socket, ask: Figures) -> None:
        host, port = listening.getsockname()[:2]
        super().__init__((host, port), _Reader, bind_and_activate=False)
        self.socket.close()
        self.socket = listening
        self.server_name, self.server_port = host, port
        self.setup_environ()
        self.set_app(_application(ask))

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a reader that disconnected or timed out."""


class _Reader(WSGIRequestHandler):
    timeout = READER_TIMEOUT_S

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  (its name in the standard library)
        """Do not log requests."""


def _application(ask: Figures) -> Any:
    from prometheus_client import CollectorRegistry, ProcessCollector, make_wsgi_app

    registry = CollectorRegistry(auto_describe=False)
    ProcessCollector(registry=registry)
    registry.register(_Collector(ask))
    respond = make_wsgi_app(registry)

    def application(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if environ.get("PATH_INFO") != PATH or environ.get("REQUEST_METHOD") not in METHODS:
            start_response("404 Not Found", [("Content-Type", "text/plain")])
            return [b"Metrics are at /metrics.\n"]
        try:
            return list(respond(environ, start_response))
        except TimeoutError:
            start_response("503 Service Unavailable", [("Content-Type", "text/plain")])
            return [b"The figures could not be collected in time.\n"]

    return application


class _Collector:
    """Adapts figures to prometheus-client's collector interface."""

    def __init__(self, ask: Figures) -> None:
        self._ask = ask

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        for figure in self._ask():
            make = CounterMetricFamily if figure.kind == "counter" else GaugeMetricFamily
            family = make(figure.name, figure.help, labels=figure.labels)
            for labels, value in figure.values:
                family.add_metric(labels, value)
            yield family
