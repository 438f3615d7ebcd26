"""Builds the command-line arguments of a pipeline's parts from the settings and the graph.

Invariant: the command line of a part contains everything except secrets, so the part can also be started alone with
the same arguments. Instead of secrets it contains the paths of their files. Used by `deployment/local_pipeline`,
which adds the addresses and files of a start.
"""

from __future__ import annotations

from pathlib import Path

from procession.address import other_port, parse_address
from procession.deployment.settings import Settings
from procession.planner.graph import Node
from procession.storage.driver_claim import checkpoint_of

GATEWAY = "gateway"


def driver_arguments(settings: Settings) -> list[str]:
    """Return the options of `procession driver` with the values of these settings."""
    argv = ["--epoch-interval-s", str(settings.epoch_interval_s)]
    argv += ["--epoch-target-s", str(settings.epoch_target_s)]
    argv += ["--small-epoch-records-max", str(settings.small_epoch_records_max)]
    argv += ["--epoch-records-max", str(settings.epoch_records_max)]
    argv += ["--epoch-bytes-max", str(settings.epoch_bytes_max)]
    argv += ["--answer-timeout-s", str(settings.answer_timeout_s)]
    argv += ["--sink-refusals-max", str(settings.sink_refusals_max)]
    argv += ["--history-bytes-max", str(settings.history_bytes_max)]
    argv += ["--state-keys-max", str(settings.state_keys_max), "--emitters", str(settings.emitters)]
    argv += ["--dead-letter-share-max", str(settings.dead_letter_share_max)]
    argv += ["--dead-letter-records-min", str(settings.dead_letter_records_min)]
    argv += ["--jvm-timeout-s", str(settings.jvm_timeout_s)]
    argv += ["--changed-stages", settings.changed_stages] if settings.changed_stages else []
    argv += option_arguments(settings, "emitters_at", "runs", "master", "environment_archive", "spark_secret_file")
    argv += [word for name, value in (settings.conf or {}).items() for word in ("--conf", f"{name}={value}")]
    argv += ["--host-services", "--driver-files", settings.driver_files] if settings.host_services else []
    return argv


def gateway_arguments(
    settings: Settings, directory: Path, part: str, listen: str, *, has_checkpoint: bool = True
) -> list[str]:
    """Return the command line of a gateway of this pipeline. All other gateways join the first."""
    argv = ["gateway", "--dir", str(directory / part), "--listen", listen]
    argv += ["--checkpoint", str(checkpoint_of(directory))] if has_checkpoint else []
    if settings.control:
        control = parse_address(settings.control) if part == GATEWAY else other_port(settings.control)
        argv += ["--control", str(control)]
    if settings.flight:
        argv += ["--flight", settings.flight if part == GATEWAY else str(other_port(settings.flight))]
    if part != GATEWAY:
        argv += ["--join", str(directory / GATEWAY), "--name", part, *option_arguments(settings, "tls_ca", "tls_name")]
    argv += ["--lag-bytes-max", str(settings.lag_bytes_max), "--credits-max", str(settings.credits_max)]
    argv += ["--overrun-bytes-max", str(settings.overrun_bytes_max)]
    argv += ["--credits", settings.credits, "--credits-min", str(settings.credits_min)]
    argv += ["--latency-target-s", str(settings.latency_target_s), "--backlog-max", str(settings.backlog_max)]
    argv += ["--held-bytes-max", str(settings.held_bytes_max)]
    argv += ["--disk-free-bytes-min", str(settings.disk_free_bytes_min)]
    argv += ["--stream-bytes-max", str(settings.stream_bytes_max)]
    argv += ["--reserve-bytes-max", str(settings.reserve_bytes_max)]
    argv += ["--sessions-max", str(settings.sessions_max), "--streams-max", str(settings.streams_max)]
    argv += ["--streams-retire-after-s", str(settings.streams_retire_after_s)]
    argv += ["--streams-retired-max", str(settings.streams_retired_max)]
    argv += ["--streams-retired-age-s", str(settings.streams_retired_age_s)]
    argv += ["--metrics-streams-max", str(settings.metrics_streams_max)]
    argv += ["--draft-counts"] * settings.draft_counts + ["--draft-debug"] * settings.draft_debug
    argv += ["--open-producers"] * settings.open_producers
    return argv + option_arguments(settings, "cookie_file", "control_cookie_file") + server_tls_arguments(settings)


def emitter_arguments(settings: Settings, directory: Path, listen: str, control_cookie_file: Path) -> list[str]:
    """Return the command line of an emitter of this pipeline."""
    argv = ["emitter", "--dir", str(directory), "--listen", listen, "--control-cookie-file", str(control_cookie_file)]
    return argv + server_tls_arguments(settings) + option_arguments(settings, "tls_ca", "tls_name")


def connector_arguments(source: Node, directory: Path) -> list[str]:
    """Return the specific arguments of the program that reads a source's URL."""
    traits = source.source_traits
    argv = list(traits.arguments(source.url, directory))
    argv += traits.declared_arguments(source.url, directory) if source.streams is not None else []
    argv += traits.endless_arguments if source.ends is False else []
    return argv + (
        ["--event-time-field", source.time_field, "--event-time-unit", source.unit] if source.time_field else []
    )


def server_tls_arguments(settings: Settings) -> list[str]:
    return option_arguments(settings, "tls_cert", "tls_key", "tls_client_ca")


def option_arguments(settings: Settings, *names: str) -> list[str]:
    """Return the given settings as command-line options, without those that are unset."""
    values = {name: getattr(settings, name) for name in names}
    given = {name: value for name, value in values.items() if value is not None}
    return [word for name, value in given.items() for word in (f"--{name.replace('_', '-')}", str(value))]
