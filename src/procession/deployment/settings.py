"""Loads an operator's settings from `procession.toml`, the environment and the command line.

Invariant: a setting has one name everywhere: `epoch_records_max` in the file, `PROCESSION_EPOCH_RECORDS_MAX` in the
environment, `--epoch-records-max` on the command line. The command line overrides the environment, which overrides the
file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource

from procession.address import parse_addresses
from procession.api.app_settings import FILE_TABLE
from procession.deployment.cookies import read_cookie
from procession.errors import ConfigError, UsageError
from procession.tls import ClientTls, client_tls, server_tls

FILE = "procession.toml"
MIB = 1024 * 1024


class _File(TomlConfigSettingsSource):
    """The file without the settings of the app, which `driver/app_values` reads."""

    def __call__(self) -> dict[str, Any]:
        return {name: value for name, value in super().__call__().items() if name != FILE_TABLE}


class Settings(BaseSettings):
    """All settings, with their units and defaults."""

    model_config = SettingsConfigDict(env_prefix="PROCESSION_", toml_file=FILE, extra="forbid", frozen=True)

    epoch_interval_s: float = Field(
        0.0,
        ge=0,
        description="Minimum time between the starts of two epochs. Raise it for fewer commits and less processor time"
        " on a small load; it adds to the latency.",
    )
    epoch_target_s: float = Field(
        2.5,
        ge=0,
        description="Time that an epoch should take at most. While records wait, epochs grow until throughput stops"
        " growing or an epoch takes this long. If even an epoch of few records takes this long, epochs may take up to"
        " twice this time. Lower it for less latency under load. 0 means epochs as large as the other limits allow.",
    )
    small_epoch_records_max: int = Field(
        1000,
        ge=0,
        description="Maximum number of records in an epoch that runs without a Spark job, in a process of the driver."
        " An epoch whose functions take longer than a Spark job always runs on Spark. It lowers the latency of small"
        " loads; the process takes about 150 MB of memory. 0 means that Spark runs every epoch. Without effect on a"
        " cluster.",
    )
    epoch_records_max: int = Field(4_000_000, ge=1, description="Maximum number of records per epoch.")
    epoch_bytes_max: int = Field(
        256 * MIB,
        ge=1,
        description="Maximum number of payload bytes per epoch. Lower it if tasks need too much memory.",
    )
    answer_timeout_s: float = Field(
        30.0,
        gt=0,
        description="Time without an answer of a sink after which its session is ended and the epoch is tried again."
        " Raise it for slow sinks.",
    )
    sink_refusals_max: int = Field(
        8,
        ge=1,
        description="Number of consecutive refusals by a sink after which the pipeline stops. A refusal is a"
        " session that the sink closes during the handshake or before its vote, a vote to abort,"
        " or no answer in time. Raise it if a proxy accepts connections for a sink that is"
        " not up yet.",
    )
    lag_bytes_max: int = Field(
        1024 * MIB,
        ge=1,
        description="Producers get no credits while more bytes than this are in the ingress log and not committed.",
    )
    overrun_bytes_max: int = Field(
        64 * MIB,
        ge=0,
        description="Bytes above `lag_bytes_max` that producers may send on credits granted before. Above"
        " that, the gateway stops reading from them.",
    )
    credits_max: int = Field(
        65_536, ge=2, description="Maximum number of credits, in frames, that a producer may hold."
    )
    credits: Literal["fixed", "adaptive"] = Field(
        "fixed",
        description="When a producer's credits are replenished: as its records are appended to the"
        " ingress log (`fixed`), or as they are committed (`adaptive`). Use `adaptive` to"
        " bound latency behind a slow pipeline.",
    )
    credits_min: int = Field(256, ge=2, description="With adaptive credits: minimum number of credits per producer.")
    latency_target_s: float = Field(
        1.0, ge=0.001, description="With adaptive credits: target time between the arrival of a record and its commit."
    )
    backlog_max: int = Field(
        16 * MIB, ge=2, description="With adaptive credits: maximum number of records that wait for their commit."
    )
    held_bytes_max: int = Field(
        16 * MIB,
        ge=1,
        description="Bytes that a producer of the draft protocol may send without a stable point of reference.",
    )
    sessions_max: int = Field(4096, ge=1, description="Maximum number of producers connected to a gateway.")
    streams_max: int = Field(
        65_536, ge=1, description="Maximum number of streams that a gateway knows, without those that are retired."
    )
    streams_retire_after_s: float = Field(
        3600.0,
        ge=0,
        description="A closed stream whose records are all committed is retired after this time."
        " Lower it if there are many short streams.",
    )
    streams_retired_max: int = Field(
        1_000_000,
        ge=0,
        description="Maximum number of retired streams whose positions are remembered. Each takes about 200 bytes of"
        " the first gateway's memory and 24 bytes of its disk.",
    )
    streams_retired_age_s: float = Field(
        2_592_000.0,
        ge=0,
        description="Time for which a retired stream is remembered. Only time in which the gateway runs counts.",
    )
    control: str | None = Field(
        None,
        description="Control address of the first gateway, HOST:PORT. Without it, control is a Unix"
        " socket that only this machine can reach. Set it for gateways on other machines.",
    )
    metrics: str | None = Field(None, description="Address where the gateway serves Prometheus metrics, HOST:PORT.")
    metrics_streams_max: int = Field(
        10_000, ge=0, description="Maximum number of streams with their own metrics. The other streams share one sum."
    )
    dashboard: bool = Field(
        True, description="`run` serves a dashboard of the pipeline. Its process starts when a user opens the link."
    )
    dashboard_listen: str = Field(
        "127.0.0.1:0",
        description="Address of the dashboard, HOST:PORT. Port 0 takes a free port. It has no TLS: use a proxy for"
        " any address except loopback.",
    )
    history_bytes_max: int = Field(
        32 * MIB,
        ge=64 * 1024,
        description="Maximum size of the history of epochs (`epochs.jsonl`), which the dashboard shows. An epoch takes"
        " about 1 KB.",
    )
    disk_free_bytes_min: int = Field(
        64 * MIB, ge=0, description="Producers get no credits while the gateway's disk has fewer free bytes than this."
    )
    stream_bytes_max: int = Field(
        0,
        ge=0,
        description="With event-time order: maximum uncommitted bytes per stream. 0 means an even share"
        " of `lag_bytes_max`.",
    )
    reserve_bytes_max: int = Field(
        64 * MIB,
        ge=0,
        description="With event-time order: bytes above `lag_bytes_max` for the producer of the stream"
        " that the merge waits for.",
    )
    draft_counts: bool = Field(False, description="Producers of the draft protocol may request counts in ACKs.")
    draft_debug: bool = Field(False, description="Producers of the draft protocol may request faults. For tests only.")
    gateways: int = Field(1, ge=1, le=64, description="Number of gateways, each a process.")
    emitters: int = Field(
        0,
        ge=0,
        le=64,
        description="Number of processes that send output to sinks with several connections (`connections=`,"
        " `lanes=`). 0 means that the driver sends it.",
    )
    emitters_at: str | None = Field(
        None,
        description="Addresses of emitters (`procession emitter`), HOST:PORT, separated by commas. They send output to"
        " sinks with several connections, in place of processes of the driver's machine (`emitters`).",
    )
    state_keys_max: int = Field(
        1_000_000,
        ge=1,
        description="Maximum number of keys whose state a task keeps in memory. The state of other keys"
        " is read from disk when it is needed.",
    )
    dead_letter_share_max: float = Field(
        0.5,
        ge=0,
        le=1,
        description="The pipeline stops when a larger share of records than this becomes dead letters. 1 means never.",
    )
    dead_letter_records_min: int = Field(
        1000, ge=1, description="Minimum number of records over which the share of dead letters is computed."
    )
    changed_stages: str | None = Field(
        None,
        description="Comma-separated names of stages that keep their state although their key function or"
        " their input has changed. Set it only for the first start after the change.",
    )
    runs: Path | None = Field(
        None,
        description="Directory for the intermediate files of exchanges. Default: the pipeline's directory."
        " A memory-backed file system is allowed.",
    )
    master: str | None = Field(None, description="Spark master URL. Default: tasks run in threads of this machine.")
    conf: dict[str, str] | None = Field(
        None,
        description='Properties of Spark, such as `"spark.executor.memory" = "4g"`. Those that order or commit'
        " depend on cannot be set.",
    )
    flight: str | None = Field(
        None,
        description="Arrow Flight address of the first gateway, HOST:PORT, from which executors on other machines"
        " fetch its log.",
    )
    host_services: bool = Field(
        False,
        description="Tasks exchange data through the host service of each executor's machine (`procession host`)"
        " and get everything else from the driver. No shared directory is needed.",
    )
    environment_archive: str | None = Field(
        None,
        description="Archive of `procession pack`, a path or a URL that Spark can read. Executors on other machines get"
        " Python's packages from it, and start their host services automatically. `procession submit` creates the"
        " archive.",
    )
    spark_secret_file: Path | None = Field(
        None,
        description="File with the secret of a standalone Spark cluster (`spark.authenticate.secret` of its master and"
        " workers). Turns Spark's authentication and encryption on.",
    )
    driver_files: str = Field(
        "127.0.0.1:0",
        description="With `host_services`: address, HOST:PORT, at which executors fetch round records, states and"
        " tables from the driver. Port 0 takes a free port.",
    )
    jvm_timeout_s: float = Field(
        30.0,
        gt=0,
        description="Time without an answer after which Spark's JVM is killed and the driver is started again.",
    )
    spare_driver: bool = Field(
        False, description="Keep a second driver, with Spark started, that takes over when the first one dies."
    )
    replicas: str | list[str] | None = Field(
        None,
        description="Object services (`procession sos`), HOST:PORT, that keep copies of the directories of the driver,"
        " the gateways and the `file:` and `lanes:` sinks. A record, vote or decision counts only after a quorum of"
        " them has stored it.",
    )
    replica_quorum: int | None = Field(
        None,
        ge=1,
        description="Number of replicas that must sync data before it is acknowledged. Default: a majority.",
    )
    replica_volume: str | None = Field(
        None, description="Name of the pipeline on the replicas. Default: the pipeline's name."
    )
    replica_cookie_file: Path | None = Field(None, description="File with the secret of the replicas.")
    replica_tls_ca: Path | None = Field(
        None, description="Certificate authority (PEM) of the replicas. Turns TLS to them on."
    )
    cookie_file: Path | None = Field(
        None, description="File with the secret for producers. Default: a file in the pipeline's directory."
    )
    control_cookie_file: Path | None = Field(
        None,
        description="File with the secret for the control port. Default: a file in the pipeline's directory.",
    )
    sink_cookie_file: Path | None = Field(
        None,
        description="File with the secret that the driver sends to every sink. Default: a file in the pipeline's"
        " directory.",
    )
    open_producers: bool = Field(
        False, description="Accept records from any producer that can reach a gateway, without a secret."
    )
    tls_cert: Path | None = Field(
        None, description="Certificate (PEM) of the gateway and the sinks. Turns TLS on where they listen."
    )
    tls_key: Path | None = Field(None, description="Private key of that certificate (PEM, without a password).")
    tls_client_ca: Path | None = Field(
        None, description="Certificate authority (PEM) for clients. Every client must then present a certificate."
    )
    tls_ca: Path | None = Field(
        None,
        description="Certificate authority (PEM) that sources and the driver trust. Turns TLS on where they connect.",
    )
    tls_name: str | None = Field(
        None, description="Name that the server's certificate must have. Default: the server's host."
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, env_settings, _File(settings_cls)

    @property
    def control_cookie(self) -> bytes:
        """The configured secret of the control port. Empty: the one in the pipeline's directory is used."""
        return read_cookie(self.control_cookie_file)

    @property
    def client_tls(self) -> ClientTls | None:
        """Return the TLS options of outgoing connections, with `tls_cert` for servers that request a certificate."""
        has_ca = self.tls_ca is not None
        return client_tls(
            self.tls_ca, self.tls_cert if has_ca else None, self.tls_key if has_ca else None, self.tls_name
        )

    def check_emitters(self) -> None:
        """Raise UsageError if emitters are set in both ways, or with an invalid address."""
        if self.emitters_at is None:
            return
        parse_addresses(self.emitters_at)
        if self.emitters:
            raise UsageError(
                "Output is sent by processes of the driver's machine (emitters) or by emitters at addresses"
                " (emitters_at), not by both.",
                next_step="Set only one of them.",
            )

    def check_tls(self) -> None:
        """Raise ConfigError if only one end of internal connections uses TLS, or if a file cannot be used."""
        if bool(server_tls(self.tls_cert, self.tls_key, self.tls_client_ca)) != bool(self.client_tls):
            raise ConfigError(
                "TLS is set for one end of a connection only",
                next_step="set tls_cert and tls_key for servers, and tls_ca for clients",
            )


def load_settings(**given: Any) -> Settings:
    """Load the settings. Arguments that are not None override the environment and the file."""
    try:
        settings = Settings(**{name: value for name, value in given.items() if value is not None})
        settings.check_emitters()
        return settings
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(map(str, first["loc"]))
        known = ", ".join(Settings.model_fields)
        raise ConfigError(
            f"there is no setting {name!r}"
            if first["type"] == "extra_forbidden"
            else f"setting {name!r} is invalid: {first['msg']}",
            next_step=f"correct it in {FILE}, in PROCESSION_{name.upper()} or on the command line; there are: {known}",
        ) from error
    except ValueError as error:  # invalid TOML
        raise ConfigError(f"{FILE} cannot be read: {error}", next_step="correct the file") from error
