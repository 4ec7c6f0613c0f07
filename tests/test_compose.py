"""The reference deployment's docker-compose.yml says what the documentation says."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parent.parent
COMPOSE = ROOT / "docker-compose.yml"
LONG_RUNNING = {"postgres", "redis", "web", "worker", "beat"}
OURS = {"migrate", "web", "worker", "beat"}


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    document = yaml.safe_load(COMPOSE.read_text())
    found: dict[str, Any] = document["services"]
    return found


def test_the_services_are_those_of_the_reference_deployment(services: dict[str, Any]) -> None:
    assert services.keys() == LONG_RUNNING | {"migrate"}


def test_every_long_running_service_has_a_health_check(services: dict[str, Any]) -> None:
    for name in LONG_RUNNING:
        check = services[name]["healthcheck"]
        assert check["test"][0] in {"CMD", "CMD-SHELL"}, name
        assert {"interval", "timeout", "retries"} <= check.keys(), name
        assert services[name]["restart"] == "unless-stopped", name


def test_only_the_web_server_is_published_and_only_on_loopback(services: dict[str, Any]) -> None:
    published = {name: service["ports"] for name, service in services.items() if "ports" in service}
    assert published.keys() == {"web"}
    for port in published["web"]:
        assert re.fullmatch(r"127\.0\.0\.1:\$\{WEB_PORT:-\d+\}:\d+", port)


def test_migrations_run_once_before_everything_of_ours(services: dict[str, Any]) -> None:
    assert services["migrate"]["restart"] == "no"
    for name in OURS - {"migrate"}:
        assert services[name]["depends_on"]["migrate"] == {"condition": "service_completed_successfully"}
    for name in OURS:
        assert services[name]["depends_on"]["postgres"] == {"condition": "service_healthy"}


def test_our_services_share_one_image_and_its_settings(services: dict[str, Any]) -> None:
    for name in OURS:
        assert services[name]["build"] == "."
        assert {"DATABASE_URL", "REDIS_URL"} <= services[name]["environment"].keys()
        assert services[name]["env_file"] == [{"path": ".env", "required": False}]
    assert services["web"]["command"][0] == "granian"
    assert services["web"]["command"][-1] == "wsgi:app"
    assert services["worker"]["command"][:4] == ["celery", "--app", "wsgi:celery", "worker"]
    assert services["beat"]["command"][:4] == ["celery", "--app", "wsgi:celery", "beat"]


def test_what_an_image_is_built_of_is_there_and_not_ignored() -> None:
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    lines = re.findall(r"^COPY (?!--from)(.+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    copied = {source for line in lines for source in line.split()[:-1]}
    assert {source.partition("/")[0] for source in copied} == kept
    for source in copied:
        assert (ROOT / source).exists(), source


def test_docker_compose_accepts_the_file() -> None:
    docker = shutil.which("docker")
    if (
        docker is None
        or subprocess.run([docker, "compose", "version"], capture_output=True, check=False).returncode
    ):
        pytest.skip("there is no `docker compose` here")
    subprocess.run([docker, "compose", "--file", COMPOSE, "config", "--quiet"], check=True, cwd=ROOT)
