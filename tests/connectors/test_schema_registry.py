"""Values with schemas: bytes that other programs write are converted to JSON and back, and each refusal is one
sentence."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Iterator
from typing import Any

import fastavro
import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto

from procession.connectors.schema_registry import RegistryCodec, SchemaRegistry
from procession.errors import ConfigError, DiskError, RecordError, UsageError
from tests.systems.schema_registry_server import RegistryServer

TRADE = {
    "type": "record",
    "name": "Trade",
    "fields": [
        {"name": "symbol", "type": "string"},
        {"name": "price", "type": ["null", "double"], "default": None},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "raw", "type": ["null", "bytes"], "default": None},
        {"name": "tags", "type": {"type": "array", "items": {"type": "map", "values": "bytes"}}},
    ],
}
VALUE = {"symbol": "ACME", "price": 12.5, "at": 1_700_000_000_123, "raw": "\x00ÿ", "tags": [{"a": "\x01"}]}


@pytest.fixture
def server() -> Iterator[RegistryServer]:
    with RegistryServer() as server:
        yield server


def head(number: int) -> bytes:
    return struct.pack(">bI", 0, number)


def field(name: str, number: int, kind: Any, type_name: str = "") -> FieldDescriptorProto:
    return FieldDescriptorProto(name=name, number=number, type=kind, label=1, type_name=type_name or None)


def trade_file() -> FileDescriptorProto:
    """Return the descriptor of: message Trade { message Venue { string name = 1; } string symbol = 1; Money price = 2;
    Timestamp at = 3; }"""
    file = FileDescriptorProto(name="trade.proto", syntax="proto3", package="t")
    file.dependency.extend(["money.proto", "google/protobuf/timestamp.proto"])
    message = file.message_type.add(name="Trade")
    message.nested_type.add(name="Venue").field.append(field("name", 1, 9))
    message.field.extend(
        [field("symbol", 1, 9), field("price", 2, 11, ".t.Money"), field("at", 3, 11, ".google.protobuf.Timestamp")]
    )
    return file


def money_file() -> FileDescriptorProto:
    file = FileDescriptorProto(name="money.proto", syntax="proto3", package="t")
    file.message_type.add(name="Money").field.append(field("cents", 1, 3))
    return file


def test_avro_becomes_json_with_numbers_for_times_and_latin_text_for_bytes(server: RegistryServer) -> None:
    number = server.register("trades-value", json.dumps(TRADE))
    body = io.BytesIO()
    fastavro.schemaless_writer(
        body, fastavro.parse_schema(TRADE), VALUE | {"raw": b"\x00\xff", "tags": [{"a": b"\x01"}]}
    )
    codec = RegistryCodec(SchemaRegistry(server.url), "trades-value")
    assert codec.decode(head(number) + body.getvalue()) == VALUE
    assert codec.encode(VALUE) == head(number) + body.getvalue()
    assert codec.decode(codec.encode(VALUE | {"raw": None, "price": None})) == VALUE | {"raw": None, "price": None}


def test_an_avro_schema_may_refer_to_others(server: RegistryServer) -> None:
    server.register("venue", json.dumps({"type": "record", "name": "Venue", "fields": [{"name": "id", "type": "int"}]}))
    outer = {"type": "record", "name": "Trade", "fields": [{"name": "venue", "type": "Venue"}]}
    server.register("t", json.dumps(outer), references=[{"name": "Venue", "subject": "venue", "version": 1}])
    codec = RegistryCodec(SchemaRegistry(server.url), "t")
    assert codec.decode(codec.encode({"venue": {"id": 7}})) == {"venue": {"id": 7}}


def test_protobuf_becomes_json_with_references_nested_messages_and_well_known_types(server: RegistryServer) -> None:
    server.register("money", money_file())
    number = server.register("t", trade_file(), references=[{"name": "money.proto", "subject": "money", "version": 1}])
    codec = RegistryCodec(SchemaRegistry(server.url), "t")
    value = {"symbol": "ACME", "price": {"cents": "1250"}, "at": "2026-11-17T09:00:00Z"}
    encoded = codec.encode(value)
    assert encoded.startswith(head(number) + b"\0\x0a\x04ACME\x12\x03\x08\xe2\x09")
    assert codec.decode(encoded) == value
    # The path [0, 0] as zigzag varints: two parts, the first nested message of the first message.
    assert codec.decode(head(number) + b"\x04\x00\x00" + b"\x0a\x03NYS") == {"name": "NYS"}


def test_a_json_schema_has_a_body_of_json(server: RegistryServer) -> None:
    number = server.register("j", "{}", "JSON")
    codec = RegistryCodec(SchemaRegistry(server.url), "j")
    assert codec.decode(head(number) + b'{"a": 1}') == {"a": 1}
    assert codec.encode({"a": 1}) == head(number) + b'{"a": 1}'


def test_each_schema_is_requested_once(server: RegistryServer) -> None:
    number = server.register("s", '"string"')
    codec = RegistryCodec(SchemaRegistry(server.url))
    assert [codec.decode(head(number) + b"\x02a") for _ in range(3)] == ["a"] * 3
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    "value", [b"", b"\x00\x00", b"\x01\x00\x00\x00\x01\x02a", head(1) + b"\x08a", head(1) + b"\x02ab", head(1)]
)
def test_a_value_that_is_not_of_its_schema_is_a_value_error(server: RegistryServer, value: bytes) -> None:
    server.register("s", '"string"')
    with pytest.raises(ValueError, match="it "):
        RegistryCodec(SchemaRegistry(server.url)).decode(value)


@pytest.mark.parametrize("value", [{"symbol": 1}, [], None, VALUE | {"price": "dear"}, VALUE | {"more": 1}])
def test_a_record_that_does_not_fit_the_schema_is_refused_with_a_sentence(
    server: RegistryServer, value: object
) -> None:
    server.register("t", json.dumps(TRADE))
    with pytest.raises(RecordError, match="does not fit the schema"):
        RegistryCodec(SchemaRegistry(server.url), "t").encode(value)


def test_each_error_of_the_registry_is_reported_in_one_sentence(server: RegistryServer) -> None:
    registry = SchemaRegistry(server.url)
    with pytest.raises(ConfigError, match="does not have the schema of the subject none"):
        registry.latest("none")
    with pytest.raises(ConfigError, match="does not have the schema 99"):
        registry.by_id(99)
    server.register("broken", '{"type": "nothing"}')
    with pytest.raises(ConfigError, match="cannot be used"):
        registry.latest("broken")
    server.register("xml", "<a/>", "XML")
    with pytest.raises(ConfigError, match="type XML"):
        registry.latest("xml")
    with pytest.raises(DiskError, match="does not answer"):
        SchemaRegistry("http://127.0.0.1:1").by_id(1)
    with pytest.raises(UsageError, match="secret"):
        SchemaRegistry("http://user:password@127.0.0.1:1")


def test_user_and_password_come_from_the_settings() -> None:
    with RegistryServer("user:word") as server:
        server.register("s", '"string"')
        with pytest.raises(ConfigError, match="refuses"):
            SchemaRegistry(server.url).latest("s")
        settings = {"schema.registry.basic.auth.user.info": "user:word"}
        assert SchemaRegistry(server.url, settings).latest("s").id == 1
