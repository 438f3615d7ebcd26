"""The files of deploy/, as far as they can be checked without a container runtime or an API server."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from procession.exit_status import FINAL_STATUSES
from tests.test_docs import check_command

DEPLOY = Path(__file__).resolve().parent.parent / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
IS_LABELLED = ("Dockerfile", "docker-compose.yml", "haproxy.cfg", "kubernetes/pipeline.yaml")


def option(unit: Path, name: str) -> str:
    found = re.search(rf"^{name}=(.*)$", unit.read_text(), re.MULTILINE)
    assert found is not None, f"{unit.name} has no {name}"
    return found[1]


def manifests() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / "kubernetes" / "pipeline.yaml").read_text()))


@pytest.mark.parametrize("name", IS_LABELLED)
def test_files_that_were_not_run_say_so(name: str) -> None:
    assert "Not run by the project's tests" in (DEPLOY / name).read_text()


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_unit_runs_a_command_that_exists(unit: Path) -> None:
    command = option(unit, "ExecStart").replace("%H", "host").replace("%i", "orders")
    if command.startswith("/usr/local/bin/procession"):
        check_command(command)
    else:
        assert shlex.split(command)[1] == "org.apache.spark.deploy.worker.Worker"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_accepts_a_unit(unit: Path, tmp_path: Path) -> None:
    for other in UNITS:
        text = re.sub(r"^(ExecStart=)\S+", r"\1/bin/true", other.read_text(), flags=re.MULTILINE)
        (tmp_path / other.name).write_text(text.replace("User=procession", "User=root"))
    name = unit.name.replace("@", "@orders")
    if name != unit.name:
        shutil.copy(tmp_path / unit.name, tmp_path / name)
    command = ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(tmp_path / name)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    complaints = [line for line in done.stderr.splitlines() if "procession" in line]
    assert complaints == []


def test_a_unit_does_not_restart_after_an_error_that_an_operator_must_fix() -> None:
    statuses = option(DEPLOY / "systemd" / "procession@.service", "RestartPreventExitStatus")
    assert set(map(int, statuses.split())) == set(map(int, FINAL_STATUSES))


def test_the_composition_runs_a_command_that_exists_on_volumes_that_it_declares() -> None:
    composition = yaml.safe_load((DEPLOY / "docker-compose.yml").read_text())
    for service in composition["services"].values():
        check_command(shlex.join(["procession", *service["command"]]))
        named = [volume.split(":")[0] for volume in service["volumes"] if not volume.startswith("$")]
        assert set(named) <= set(composition["volumes"])
        context = (DEPLOY / service["build"]["context"]).resolve()
        assert (context / service["build"]["dockerfile"]).is_file()


def test_the_image_copies_files_that_exist() -> None:
    lines = (DEPLOY / "Dockerfile").read_text().splitlines()
    copied = [line.split()[1:-1] for line in lines if line.startswith("COPY ") and "--from" not in line]
    assert copied
    for path in (path for paths in copied for path in paths):
        assert (DEPLOY.parent / path).exists(), path


def test_the_manifests_select_each_other_and_run_a_command_that_exists() -> None:
    service, pipeline = manifests()
    assert (service["kind"], pipeline["kind"]) == ("Service", "StatefulSet")
    template = pipeline["spec"]["template"]
    labels = template["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()
    assert pipeline["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert pipeline["spec"]["serviceName"] == service["metadata"]["name"]
    assert pipeline["spec"]["replicas"] == 1
    (container,) = template["spec"]["containers"]
    check_command(shlex.join(["procession", *container["args"]]))
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert {port["targetPort"] for port in service["spec"]["ports"]} <= set(ports)
    for name, address in (("producers", "--listen"), ("metrics", "--metrics")):
        assert container["args"][container["args"].index(address) + 1].endswith(f":{ports[name]}")
    volumes = {volume["name"] for volume in template["spec"]["volumes"]}
    volumes |= {claim["metadata"]["name"] for claim in pipeline["spec"]["volumeClaimTemplates"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes


def test_the_load_balancer_passes_bytes_through_and_sends_a_producer_to_the_same_gateway() -> None:
    text = (DEPLOY / "haproxy.cfg").read_text()
    sections = re.findall(r"^(global|defaults|frontend|backend)\b *(\S*)", text, re.MULTILINE)
    assert [kind for kind, _ in sections] == ["global", "defaults", "frontend", "backend"]
    assert ("backend", re.search(r"default_backend (\S+)", text)[1]) in sections  # type: ignore[index]
    assert "mode tcp" in text
    assert "balance source" in text
