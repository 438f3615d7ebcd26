"""The settings of an operator, from `procession.toml`, the environment and the command line.

The one rule: a setting has one name everywhere: `epoch_records_max` in the file, `PROCESSION_EPOCH_RECORDS_MAX` in the
environment, `--epoch-records-max` on the command line. The command line overrides the environment, which overrides the
file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource

from procession.errors import ConfigError
from procession.supervisor.cookies import read_cookie
from procession.tls import ClientTls, client_tls, server_tls

FILE = "procession.toml"
MIB = 1024 * 1024


class Settings(BaseSettings):
    """Every limit has a name, a unit and a default here."""

    model_config = SettingsConfigDict(env_prefix="PROCESSION_", toml_file=FILE, extra="forbid", frozen=True)

    epoch_interval_s: float = Field(0.1, ge=0, description="the least time between the starts of two epochs")
    epoch_records_max: int = Field(250_000, ge=1, description="so many records make an epoch at most")
    epoch_bytes_max: int = Field(64 * MIB, ge=1, description="so many bytes make an epoch at most")
    answer_timeout_s: float = Field(30.0, gt=0, description="how long a sink may take to answer")
    sink_refusals_max: int = Field(
        8,
        ge=1,
        description="stop after a sink has refused so many times in a row: closed at its greeting or before its vote,"
        " voted abort, or did not answer; raise it where a proxy accepts connections for a sink that is not up yet",
    )
    lag_bytes_max: int = Field(1024 * MIB, ge=1, description="producers wait while more than this is not committed")
    overrun_bytes_max: int = Field(
        64 * MIB, ge=0, description="so much more may come on credits given before; then producers are not read"
    )
    credits_max: int = Field(65_536, ge=2, description="so many frames a producer may send ahead")
    credits: Literal["fixed", "adaptive"] = Field(
        "fixed", description="whether producers get credits back as records are appended, or as they are committed"
    )
    credits_min: int = Field(256, ge=2, description="adaptive: so many credits a producer may hold at least")
    latency_target_s: float = Field(1.0, ge=0.001, description="adaptive: how long a record should wait for its commit")
    backlog_max: int = Field(16 * MIB, ge=2, description="adaptive: so many records wait for their commit at most")
    held_bytes_max: int = Field(
        16 * MIB, ge=1, description="what a producer of the draft may send without a stable point of reference"
    )
    sessions_max: int = Field(4096, ge=1, description="so many producers may be connected to a gateway")
    control: str | None = Field(
        None, description="where the first gateway is asked, HOST:PORT, if not by this machine only"
    )
    metrics: str | None = Field(None, description="where Prometheus reads the gateway's metrics, HOST:PORT")
    metrics_streams_max: int = Field(10_000, ge=0, description="so many streams have metrics of their own")
    disk_free_bytes_min: int = Field(
        64 * MIB, ge=0, description="producers wait while the gateway's disk has less room than this"
    )
    stream_bytes_max: int = Field(
        0, ge=0, description="by event time: so much of one stream may wait; 0: an even share of `lag_bytes_max`"
    )
    reserve_bytes_max: int = Field(
        64 * MIB,
        ge=0,
        description="by event time: so much above `lag_bytes_max` for whoever has the stream that is waited for",
    )
    draft_counts: bool = Field(False, description="producers of the draft may ask for counts in ACKs")
    draft_debug: bool = Field(False, description="producers of the draft may ask for faults: for tests only")
    gateways: int = Field(1, ge=1, le=64, description="so many gateways take records, each as a process of its own")
    state_keys_max: int = Field(
        1_000_000, ge=1, description="so many keys' states a task holds in memory; the others are read when touched"
    )
    dead_letter_share_max: float = Field(
        0.5, ge=0, le=1, description="the pipeline stops when a larger share of records becomes dead letters; 1: never"
    )
    dead_letter_records_min: int = Field(
        1000, ge=1, description="the share of dead letters is judged over at least this many records at a time"
    )
    changed_stages: str | None = Field(
        None,
        description="names, separated by commas, of stages that go on with their states although their key function or"
        " what feeds them is another: only for the start after the change",
    )
    runs: Path | None = Field(None, description="the run store, if not in the pipeline's directory")
    master: str | None = Field(None, description="Spark's master, if not local threads")
    jvm_timeout_s: float = Field(
        30.0, gt=0, description="Spark's JVM is killed, and the driver started again, when it does not answer so long"
    )
    spare_driver: bool = Field(False, description="a second driver waits, with Spark started, to take over")
    cookie_file: Path | None = Field(None, description="a file with the secret that producers must show, if not made")
    control_cookie_file: Path | None = Field(
        None, description="a file with the secret of driver, gateways and operators, if not made"
    )
    sink_cookie_file: Path | None = Field(
        None, description="a file with the secret that every sink is shown, if not made"
    )
    open_producers: bool = Field(False, description="anybody who reaches a gateway may send, without a secret")
    tls_cert: Path | None = Field(None, description="a certificate (PEM) that gateway and sinks show: they speak TLS")
    tls_key: Path | None = Field(None, description="its key (PEM, without a password)")
    tls_client_ca: Path | None = Field(None, description="who connects must show a certificate of this authority")
    tls_ca: Path | None = Field(None, description="whom source and driver trust where they connect: they speak TLS")
    tls_name: str | None = Field(None, description="the name in the other side's certificate, if not its host")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls)

    @property
    def control_cookie(self) -> bytes:
        """Empty: that of the pipeline's directory."""
        return read_cookie(self.control_cookie_file)

    @property
    def client_tls(self) -> ClientTls | None:
        """TLS where we connect: we show our certificate there too, if we are asked for one."""
        has_ca = self.tls_ca is not None
        return client_tls(
            self.tls_ca, self.tls_cert if has_ca else None, self.tls_key if has_ca else None, self.tls_name
        )

    def check_tls(self) -> None:
        """Both ends are ours: ConfigError unless both speak TLS, with files that can be used, or neither does."""
        if bool(server_tls(self.tls_cert, self.tls_key, self.tls_client_ca)) != bool(self.client_tls):
            raise ConfigError(
                "TLS is set for one end of a connection only",
                next_step="set tls_cert and tls_key for who listens, and tls_ca for who connects",
            )


def load_settings(**given: Any) -> Settings:
    """The settings; what is given here (and is not None) outweighs environment and file."""
    try:
        return Settings(**{name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(map(str, first["loc"]))
        known = ", ".join(Settings.model_fields)
        raise ConfigError(
            f"there is no setting {name!r}"
            if first["type"] == "extra_forbidden"
            else f"setting {name!r} is not right: {first['msg']}",
            next_step=f"mend it in {FILE}, in PROCESSION_{name.upper()} or on the command line; there are: {known}",
        ) from error
    except ValueError as error:  # TOML that cannot be read
        raise ConfigError(f"{FILE} cannot be read: {error}", next_step="mend the file") from error
