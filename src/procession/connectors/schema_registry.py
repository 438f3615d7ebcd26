"""Converts values with schemas (Avro, Protobuf and JSON, in the wire format of a schema registry) to JSON and back.

Invariant: a value is a zero byte, the schema's id (32 bits, big-endian) and the body. Values without a JSON type have
one fixed form: bytes are text in ISO 8859-1, as in Avro's own JSON encoding, and an Avro logical type is its
underlying type, so a timestamp is a number. Upstream: `connectors/kafka_messages`; downstream: the registry, over
HTTP.
"""

from __future__ import annotations

import base64
import io
import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn
from urllib.parse import quote, urlsplit

from procession.errors import ConfigError, DiskError, RecordError, UsageError

try:
    import fastavro
    import httpx
    from google.protobuf import (
        any_pb2,
        descriptor_pb2,
        duration_pb2,
        empty_pb2,
        field_mask_pb2,
        json_format,
        message_factory,
        struct_pb2,
        timestamp_pb2,
        wrappers_pb2,
    )
    from google.protobuf.descriptor_pool import DescriptorPool
    from google.protobuf.message import DecodeError
except ImportError as error:  # pragma: no cover
    raise ConfigError(
        "A schema registry needs the packages fastavro, httpx and protobuf, of which one is not installed.",
        next_step="Install them: pip install 'procession[kafka]'.",
    ) from error

TIMEOUT_S = 10.0
TRIES = 5
SCHEMA_BYTES_MAX = 4 * 1024 * 1024
SCHEMAS_MAX = 10_000
REFERENCES_MAX = 100
USER_SETTING = "schema.registry.basic.auth.user.info"
CA_SETTING = "schema.registry.ssl.ca.location"
HEAD = struct.Struct(">bI")
MAGIC = 0
WELL_KNOWN = {
    module.DESCRIPTOR.name: module
    for module in (
        any_pb2,
        descriptor_pb2,
        duration_pb2,
        empty_pb2,
        field_mask_pb2,
        struct_pb2,
        timestamp_pb2,
        wrappers_pb2,
    )
}
"""Files that are part of Protobuf and therefore not in a registry."""

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """A schema as two functions: from a body to JSON values, and back."""

    id: int
    decode: Callable[[bytes], Any]
    encode: Callable[[Any], bytes]


class SchemaRegistry:
    """A client of a registry. Schemas never change, so each schema is requested once.

    Args:
        url: http:// or https://, without any secret.
        settings: Settings from the client's file: user and password, and the certificate authority.
    """

    def __init__(self, url: str, settings: Mapping[str, str] | None = None) -> None:
        parts, settings = urlsplit(url), settings or {}
        if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc or parts.query:
            raise UsageError(
                "The URL of the schema registry is not http://HOST:PORT, or has a secret in it.",
                next_step=f"Write http://HOST:PORT; put {USER_SETTING}=USER:PASSWORD into the file of --client-config.",
            )
        self._url = url.rstrip("/")
        user, _, password = settings.get(USER_SETTING, "").partition(":")
        self._client = httpx.Client(
            auth=(user, password) if user else None,
            verify=settings.get(CA_SETTING, True),
            timeout=TIMEOUT_S,
            transport=httpx.HTTPTransport(retries=TRIES, verify=settings.get(CA_SETTING, True)),
        )
        self._schemas: dict[int, RegisteredSchema] = {}

    def by_id(self, schema_id: int) -> RegisteredSchema:
        found = self._schemas.get(schema_id)
        if found is None:
            if len(self._schemas) >= SCHEMAS_MAX:
                raise ConfigError(
                    f"The topic uses more than {SCHEMAS_MAX} schemas.",
                    next_step="Look at its producers: each seems to register schemas of its own.",
                )
            document = self._get(f"/schemas/ids/{schema_id}", f"the schema {schema_id}")
            found = self._schemas[schema_id] = self._schema(schema_id, document, f"/schemas/ids/{schema_id}")
        return found

    def latest(self, subject: str) -> RegisteredSchema:
        path = f"/subjects/{quote(subject, safe='')}/versions/latest"
        document = self._get(path, f"the schema of the subject {subject}")
        return self._schema(int(document["id"]), document, path)

    def _schema(self, schema_id: int, document: Json, path: str) -> RegisteredSchema:
        kind = document.get("schemaType") or "AVRO"
        try:
            if kind == "AVRO":
                return _avro(schema_id, document, self._referenced(document))
            if kind == "PROTOBUF":
                return self._protobuf(schema_id, document, path)
            if kind == "JSON":
                return RegisteredSchema(schema_id, json.loads, lambda value: json.dumps(value).encode())
        except (ValueError, TypeError, KeyError) as error:
            raise ConfigError(
                f"The {kind} schema {schema_id} of the registry cannot be used: {error}.",
                next_step="Correct the schema in the registry.",
            ) from error
        raise ConfigError(
            f"The schema {schema_id} is of the type {kind}, which is not supported.",
            next_step="Use AVRO, PROTOBUF or JSON; or decode in the app.",
        )

    def _referenced(self, document: Json, form: str = "") -> list[Json]:
        """Return the schemas that a schema refers to, each after its own references."""
        found: dict[tuple[str, int], Json] = {}

        def visit(schema: Json) -> None:
            for reference in schema.get("references") or ():
                key = str(reference["subject"]), int(reference["version"])
                if key in found:
                    continue
                if len(found) >= REFERENCES_MAX:
                    raise ValueError(f"it refers to more than {REFERENCES_MAX} others")
                found[key] = {}
                path = f"/subjects/{quote(key[0], safe='')}/versions/{key[1]}{form}"
                referred = self._get(path, f"version {key[1]} of the subject {key[0]}")
                visit(referred)
                found[key] = found.pop(key) | referred | {"name": reference["name"]}

        visit(document)
        return list(found.values())

    def _protobuf(self, schema_id: int, document: Json, path: str) -> RegisteredSchema:
        form = "?format=serialized"
        own = self._get(f"{path}{form}", f"the serialized schema {schema_id}")
        pool = DescriptorPool()
        files = [(reference["name"], reference["schema"]) for reference in self._referenced(document, form)]
        for name, text in [*files, (f"schema-{schema_id}.proto", own["schema"])]:
            file = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(text))
            file.name = name
            for dependency in file.dependency:
                _add_well_known(pool, dependency)
            pool.Add(file)
        return _protobuf_schema(schema_id, pool, f"schema-{schema_id}.proto")

    def _get(self, path: str, what: str) -> Json:
        try:
            answer = self._client.get(f"{self._url}{path}")
        except httpx.HTTPError as error:
            raise DiskError(
                f"The schema registry at {self._url} does not answer: {error}.",
                next_step="Start it, or correct --schema-registry.",
            ) from error
        if answer.status_code == httpx.codes.NOT_FOUND:
            raise ConfigError(
                f"The schema registry at {self._url} does not have {what}.",
                next_step="Register the schema, or correct --subject and --schema-registry.",
            )
        if answer.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
            raise ConfigError(
                f"The schema registry at {self._url} refuses to give {what}: {answer.status_code}.",
                next_step=f"Put {USER_SETTING}=USER:PASSWORD into the file of --client-config.",
            )
        if answer.is_server_error:
            raise DiskError(
                f"The schema registry at {self._url} failed to give {what}: {answer.status_code}.",
                next_step="Look at its log; the connector then continues where it stopped.",
            )
        try:
            document = answer.json() if answer.is_success and len(answer.content) <= SCHEMA_BYTES_MAX else None
        except ValueError:
            document = None
        if not isinstance(document, dict) or not isinstance(document.get("schema"), str):
            raise ConfigError(
                f"{self._url} answered {what} with {answer.status_code} and no schema.",
                next_step="Give the URL of a schema registry as --schema-registry.",
            )
        return document


class RegistryCodec:
    """Decodes a value with the schema that it names. Encodes with the subject's latest schema at the start."""

    def __init__(self, registry: SchemaRegistry, subject: str | None = None) -> None:
        self._registry = registry
        self._own = registry.latest(subject) if subject is not None else None

    def decode(self, value: bytes) -> Any:
        """Decode a value. Raises ValueError if the value has another format, or does not match its schema."""
        if len(value) < HEAD.size or value[0] != MAGIC:
            raise ValueError("it does not begin with a zero byte and the id of a schema")
        _, schema_id = HEAD.unpack_from(value)
        schema = self._registry.by_id(schema_id)
        try:
            return schema.decode(value[HEAD.size :])
        except (ValueError, TypeError, KeyError, IndexError, EOFError, DecodeError, json_format.Error) as error:
            raise ValueError(f"it does not match the schema {schema_id}: {_error_text(error)}") from error

    def encode(self, value: Any) -> bytes:
        assert self._own is not None
        try:
            return HEAD.pack(MAGIC, self._own.id) + self._own.encode(value)
        except (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, json_format.Error) as error:
            self._unfit(value, error)

    def _unfit(self, value: Any, error: Exception) -> NoReturn:
        assert self._own is not None
        raise RecordError(
            f"The record {json.dumps(value)[:80]} does not fit the schema {self._own.id}: {_error_text(error)}.",
            next_step="Correct the stage before the sink, or register a schema that fits and start the sink again.",
        ) from error


def _error_text(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


# Avro


def _avro(schema_id: int, document: Json, references: list[Json]) -> RegisteredSchema:
    named: dict[str, Any] = {}
    for reference in references:
        fastavro.parse_schema(_underlying(json.loads(reference["schema"])), named_schemas=named)
    plain = _underlying(json.loads(document["schema"]))
    parsed = fastavro.parse_schema(plain, named_schemas=named)

    def decode(body: bytes) -> Any:
        source = io.BytesIO(body)
        value = fastavro.schemaless_reader(source, parsed, None)
        if source.tell() != len(body):
            raise ValueError(f"{len(body) - source.tell()} bytes are left over")
        return _as_text(value)

    def encode(value: Any) -> bytes:
        target = io.BytesIO()
        fastavro.schemaless_writer(target, parsed, _as_bytes(value, plain), strict=True)
        return target.getvalue()

    return RegisteredSchema(schema_id, decode, encode)


def _underlying(schema: Any) -> Any:
    """Return the schema without logical types."""
    if isinstance(schema, list):
        return [_underlying(branch) for branch in schema]
    if isinstance(schema, dict):
        return {name: _underlying(part) for name, part in schema.items() if name != "logicalType"}
    return schema


def _as_text(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode("iso-8859-1")
    if isinstance(value, dict):
        return {name: _as_text(part) for name, part in value.items()}
    return [_as_text(part) for part in value] if isinstance(value, list) else value


def _as_bytes(value: Any, schema: Any) -> Any:
    """Return the value with bytes where the schema has bytes."""
    kind = schema.get("type") if isinstance(schema, dict) else schema
    if isinstance(schema, list):
        kinds = [branch.get("type") if isinstance(branch, dict) else branch for branch in schema]
        if isinstance(value, str):
            fits = "string" not in kinds and "enum" not in kinds and {"bytes", "fixed"} & set(map(str, kinds))
            return value.encode("iso-8859-1") if fits else value
        branch = next((member for member, kind in zip(schema, kinds, strict=True) if _is_of(value, kind)), None)
        return value if branch is None else _as_bytes(value, branch)
    if kind in ("bytes", "fixed") and isinstance(value, str):
        return value.encode("iso-8859-1")
    if kind == "record" and isinstance(value, dict):
        types = {field["name"]: field["type"] for field in schema["fields"]}
        return {name: _as_bytes(part, types.get(name)) for name, part in value.items()}
    if kind == "array" and isinstance(value, list):
        return [_as_bytes(part, schema["items"]) for part in value]
    if kind == "map" and isinstance(value, dict):
        return {name: _as_bytes(part, schema["values"]) for name, part in value.items()}
    return _as_bytes(value, kind) if isinstance(kind, dict | list) else value


def _is_of(value: Any, kind: Any) -> bool:
    return (isinstance(value, dict) and kind in ("record", "map")) or (isinstance(value, list) and kind == "array")


# Protobuf


def _add_well_known(pool: DescriptorPool, name: str) -> None:
    try:
        pool.FindFileByName(name)
    except KeyError:
        if name not in WELL_KNOWN:
            raise ValueError(f"it imports {name}, which is not in its references") from None
        known = descriptor_pb2.FileDescriptorProto()
        WELL_KNOWN[name].DESCRIPTOR.CopyToProto(known)
        for dependency in known.dependency:
            _add_well_known(pool, dependency)
        pool.Add(known)


def _protobuf_schema(schema_id: int, pool: DescriptorPool, name: str) -> RegisteredSchema:
    """Return a Protobuf schema. A body begins with the path of its message in the file, as a list of indexes; the
    path 0 is a single byte."""
    file = pool.FindFileByName(name)
    first = list(file.message_types_by_name.values())

    def decode(body: bytes) -> Any:
        path, start = _message_path(body)
        messages, descriptor = first, None
        for index in path:
            descriptor = messages[index]
            messages = list(descriptor.nested_types)
        message = message_factory.GetMessageClass(descriptor)()
        message.ParseFromString(body[start:])
        return json_format.MessageToDict(message, preserving_proto_field_name=True, descriptor_pool=pool)

    def encode(value: Any) -> bytes:
        message = message_factory.GetMessageClass(first[0])()
        json_format.ParseDict(value, message, descriptor_pool=pool)
        return b"\0" + bytes(message.SerializeToString(deterministic=True))

    return RegisteredSchema(schema_id, decode, encode)


def _message_path(body: bytes) -> tuple[list[int], int]:
    count, position = _zigzag(body, 0)
    if count == 0:
        return [0], position
    if not 0 < count <= 100:
        raise ValueError(f"the path of its message has {count} parts")
    path = []
    for _ in range(count):
        index, position = _zigzag(body, position)
        if index < 0:
            raise ValueError("the path of its message has a negative part")
        path.append(index)
    return path, position


def _zigzag(body: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = body[position]
        position += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            return (value >> 1) ^ -(value & 1), position
        if shift > 35:
            raise ValueError("the path of its message is not a number")
