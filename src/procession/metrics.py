"""Metrics: figures as Prometheus reads them, at an HTTP port of their own.

The one rule: who has figures says what they are and never how they are told; they are asked for when somebody reads
them, and cost nothing otherwise. One reader is served at a time, in a thread beside the work. Before it: `figures` of
the gateway. After it: prometheus-client, imported only where there is such a port.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

POLL_S = 0.1
"""So long it takes at most to notice that the door is to be closed."""

READER_TIMEOUT_S = 5.0
"""A reader that says or takes nothing for so long makes room for the next."""


PATH = "/metrics"
METHODS = ("GET", "HEAD")


class Figure(NamedTuple):
    """One metric: its name, what it is, and its values by the values of its labels."""

    name: str
    kind: Literal["counter", "gauge"]
    help: str
    labels: tuple[str, ...]
    values: Sequence[tuple[tuple[str, ...], float]]


Figures = Callable[[], Iterable[Figure]]


class MetricsDoor:
    """Serves what `ask` gives, to whoever reads `/metrics`; `ask` is called in the door's own thread."""

    def __init__(self, listening: socket.socket, ask: Figures) -> None:
        self._server = _Server(listening, ask)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(POLL_S,), name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening. A reader who is being served is waited for, no longer than its time-out."""
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
        """A reader that left, or said nothing in time: nobody is to act."""


class _Reader(WSGIRequestHandler):
    timeout = READER_TIMEOUT_S

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  (its name in the standard library)
        """Reading metrics is no event."""


def _application(ask: Figures) -> Any:
    from prometheus_client import CollectorRegistry, ProcessCollector, make_wsgi_app

    registry = CollectorRegistry(auto_describe=False)
    ProcessCollector(registry=registry)
    registry.register(_Collector(ask))
    tell = make_wsgi_app(registry)

    def application(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if environ.get("PATH_INFO") != PATH or environ.get("REQUEST_METHOD") not in METHODS:
            start_response("404 Not Found", [("Content-Type", "text/plain")])
            return [b"Metrics are at /metrics.\n"]
        try:
            return list(tell(environ, start_response))
        except TimeoutError:
            start_response("503 Service Unavailable", [("Content-Type", "text/plain")])
            return [b"Whoever has the figures did not give them in time.\n"]

    return application


class _Collector:
    """As prometheus-client asks for figures."""

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
