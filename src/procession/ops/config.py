"""Settings: what an operator may set, from `procession.toml`, the environment and the command line.

The one rule: one name for one setting everywhere: `epoch_records_max` in the file, `PROCESSION_EPOCH_RECORDS_MAX` in
the environment, `--epoch-records-max` on the command line, in rising order of weight. Before it the command line;
after it the parts.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource

from procession.errors import ConfigError
from procession.ops.cookie import read_cookie

FILE = "procession.toml"
MIB = 1024 * 1024


class Settings(BaseSettings):
    """Every limit has a name, a unit and a default here."""

    model_config = SettingsConfigDict(env_prefix="PROCESSION_", toml_file=FILE, extra="forbid", frozen=True)

    epoch_interval_s: float = Field(0.1, ge=0, description="the least time between the starts of two epochs")
    epoch_records_max: int = Field(250_000, ge=1, description="so many records make an epoch at most")
    epoch_bytes_max: int = Field(64 * MIB, ge=1, description="so many bytes make an epoch at most")
    answer_timeout_s: float = Field(30.0, gt=0, description="how long a sink may take to answer")
    lag_bytes_max: int = Field(1024 * MIB, ge=1, description="producers wait while more than this is not committed")
    credits_max: int = Field(16_384, ge=2, description="so many frames a producer may send ahead")
    held_bytes_max: int = Field(
        16 * MIB, ge=1, description="what a producer of the draft may send without a stable point of reference"
    )
    draft_counts: bool = Field(False, description="producers of the draft may ask for counts in ACKs")
    draft_debug: bool = Field(False, description="producers of the draft may ask for faults: for tests only")
    runs: Path | None = Field(None, description="the run store, if not in the pipeline's directory")
    master: str | None = Field(None, description="Spark's master, if not local threads")
    spare_driver: bool = Field(
        False, description="a second driver waits, with Spark started, to take over"
    )
    cookie_file: Path | None = Field(None, description="a file with the secret that connectors must show")

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
    def cookie(self) -> bytes:
        return read_cookie(self.cookie_file)


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
