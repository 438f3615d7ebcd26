"""A schema registry for tests: a small HTTP server that answers as the real product does."""

from __future__ import annotations

import base64
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from google.protobuf.descriptor_pb2 import FileDescriptorProto


class RegistryServer:
    """A server, used as a context manager. With `password`, every request needs it."""

    def __init__(self, password: str = "") -> None:
        self._schemas: dict[int, dict[str, Any]] = {}
        self._subjects: dict[str, list[int]] = {}
        self._serialized: dict[int, str] = {}
        self.requests: list[str] = []
        owner, expected = self, f"Basic {base64.b64encode(password.encode()).decode()}"

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                owner.requests.append(self.path)
                is_allowed = not password or self.headers.get("Authorization") == expected
                reply = owner._answer(self.path) if is_allowed else None
                body = json.dumps(
                    reply if reply is not None else {"error_code": 40403, "message": "not found"}
                ).encode()
                self.send_response(200 if reply is not None else 404 if is_allowed else 401)
                self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> RegistryServer:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def register(
        self, subject: str, schema: str | FileDescriptorProto, kind: str = "AVRO", references: list[Any] | None = None
    ) -> int:
        number = len(self._schemas) + 1
        fields: dict[str, Any] = {"references": references} if references else {}
        if isinstance(schema, FileDescriptorProto):
            kind, self._serialized[number] = "PROTOBUF", base64.b64encode(schema.SerializeToString()).decode()
            schema = "the text of a .proto file"
        if kind != "AVRO":
            fields["schemaType"] = kind
        self._schemas[number] = fields | {"schema": schema}
        self._subjects.setdefault(subject, []).append(number)
        return number

    def _answer(self, path: str) -> dict[str, Any] | None:
        parts = urlsplit(path)
        form = parse_qs(parts.query).get("format")
        match [unquote(part) for part in parts.path.strip("/").split("/")]:
            case ["schemas", "ids", number]:
                found = int(number)
            case ["subjects", subject, "versions", version] if subject in self._subjects:
                versions = self._subjects[subject]
                found = versions[-1] if version == "latest" else versions[int(version) - 1]
            case _:
                return None
        if found not in self._schemas:
            return None
        schema = self._serialized[found] if form == ["serialized"] else self._schemas[found]["schema"]
        return self._schemas[found] | {"schema": schema, "id": found}
