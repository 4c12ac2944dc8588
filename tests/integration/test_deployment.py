"""The image and the compose file: valid, closed, and their commands run as processes against PostgreSQL."""

from __future__ import annotations

import configparser
import importlib.util
import json
import re
import shutil
import subprocess
import sys
import threading
import tomllib
import zipfile
from importlib import metadata, resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from jsonschema import Draft7Validator
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from ruamel.yaml import YAML

from autodeploy.kit.settings import Settings
from autodeploy.service.session import open_services
from tests.faults.ledger import SPEC
from tests.integration.conftest import eventually
from tests.support import plain_http
from tests.support.postgresql import free_port
from tests.support.programs import Program, children_of, wait_until_ready

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

    import httpx

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[2]
# Half a minute of work, so that it still runs when its worker is told to stop.
LONG_SPEC = (
    SPEC
    | {"model": "deepseek-v3", "cluster": {"profile": "cloudmatrix-384", "num_npus": 384}}
    | {
        "training": {"seq_length": 4096, "global_batch_size": 15360},
        "search": {"effort": "deep"},
    }
)


REQUIRED = re.compile(r"\$\{(\w+):\?[^}]*\}")


def read_compose(name: str) -> dict[str, Any]:
    """A compose file with defaults put in for its variables, and a word for those that have none."""
    text = (ROOT / name).read_text(encoding="utf-8")
    for _ in range(2):  # a default may itself have one
        text = re.sub(r"\$\{\w+:-([^{}]*)\}", r"\1", text)
    text = REQUIRED.sub("secret", text)
    assert "${" not in text
    return dict(YAML(typ="safe", pure=True).load(text))


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    """docker-compose.yml: API, worker and PostgreSQL."""
    return read_compose("docker-compose.yml")


@pytest.fixture(scope="module")
def compose_sqlite() -> dict[str, Any]:
    """docker-compose.sqlite.yml: one server."""
    return read_compose("docker-compose.sqlite.yml")


@pytest.fixture(scope="module")
def runtime_lock() -> ModuleType:
    spec = importlib.util.spec_from_file_location("runtime_lock", ROOT / ".ci" / "runtime_lock.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["docker-compose.yml", "docker-compose.sqlite.yml"])
def test_the_compose_file_is_valid(name):
    compose = read_compose(name)
    schemas = resources.files("check_jsonschema") / "builtin_schemas" / "vendor"
    schema = json.loads((schemas / "compose-spec.json").read_text(encoding="utf-8"))
    validator = Draft7Validator(schema)
    assert [error.message for error in validator.iter_errors(compose)] == []
    assert list(validator.iter_errors(compose | {"no_such_part": {}})), "the schema refuses what it does not know"


def test_every_service_of_ours_is_confined(compose, compose_sqlite):
    services = compose["services"] | compose_sqlite["services"]
    ours = {name: service for name, service in services.items() if name != "postgres"}
    assert set(ours) == {"migrate", "api", "worker", "sqlite"}
    assert all("mem_limit" in service and 0 < float(service["cpus"]) <= 2 for service in services.values())
    assert services["postgres"]["networks"] == ["database"]
    assert compose["networks"]["database"] == {"internal": True}
    named = {network for service in services.values() for network in service["networks"]}
    assert named == {*compose["networks"], *compose_sqlite["networks"]}
    assert all("healthcheck" in service for name, service in services.items() if name != "migrate")
    for service in ours.values():
        assert service["read_only"]
        assert service["cap_drop"] == ["ALL"]
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))


@pytest.mark.parametrize("page", ["how-to/deploy.md", "zh/how-to/deploy.md"])
def test_limits_of_containers_are_said(page):
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    rows = {row.strip() for row in text.splitlines() if row.startswith("| ")}
    files = (ROOT / name for name in ("docker-compose.yml", "docker-compose.sqlite.yml"))
    limits = [
        limit
        for file in files
        for limit in re.findall(r"\$\{(\w+_(?:MEMORY|CPUS)):-(\w+)\}", file.read_text(encoding="utf-8"))
    ]
    assert len(limits) == 8
    unsaid = [(name, value) for name, value in limits if not any(f"`{name}`" in row and value in row for row in rows)]
    assert unsaid == []


def test_images_are_named_by_their_exact_version_and_no_password_is_known(compose, compose_sqlite):
    version = metadata.version("autodeploy")
    images = {name: service["image"] for name, service in (compose["services"] | compose_sqlite["services"]).items()}
    assert {image for name, image in images.items() if name != "postgres"} == {f"autodeploy:{version}"}
    assert re.fullmatch(r"postgres:\d+\.\d+-bookworm", images["postgres"])
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    assert re.findall(r"^FROM (\S+)", dockerfile, flags=re.MULTILINE) == ["${PYTHON_IMAGE}"] * 2
    (base,) = re.findall(r"^ARG PYTHON_IMAGE=(\S+)", dockerfile, flags=re.MULTILINE)
    assert re.fullmatch(r"python:3\.\d+\.\d+-slim-bookworm", base)
    assert compose["services"]["api"]["build"]["args"]["PYTHON_IMAGE"] == base
    text = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
    assert set(REQUIRED.findall(text)) == {"POSTGRES_PASSWORD"}
    assert "POSTGRES_PASSWORD:-" not in text


def test_the_database_s_container_is_confined_as_far_as_it_starts(compose):
    postgres = compose["services"]["postgres"]
    assert postgres["read_only"]
    assert postgres["cap_drop"] == ["ALL"]
    assert postgres["pids_limit"] > 0
    assert postgres["healthcheck"]["test"][1] == "pg_isready"


def test_a_server_is_healthy_when_it_is_ready(compose):
    assert "/readyz" in compose["services"]["api"]["healthcheck"]["test"][-1]


MANIFESTS = {("v1", "ConfigMap"), ("v1", "Service"), ("batch/v1", "Job"), ("apps/v1", "Deployment")}


@pytest.fixture(scope="module")
def manifests() -> list[dict[str, Any]]:
    path = ROOT / "examples" / "deploy" / "kubernetes" / "autodeploy.yaml"
    return [dict(each) for each in YAML(typ="safe", pure=True).load_all(path.read_text(encoding="utf-8"))]


def test_manifests_are_valid(manifests):
    """By the part of Kubernetes' API that they use; nothing else passes."""
    schema = json.loads((Path(__file__).parent / "kubernetes_subset.json").read_text(encoding="utf-8"))
    validator = Draft7Validator(schema)
    for manifest in manifests:
        assert [error.message for error in validator.iter_errors(manifest)] == []
        assert list(validator.iter_errors(manifest | {"kind": "Deployments"}))
    assert {(each["apiVersion"], each["kind"]) for each in manifests} == MANIFESTS
    server = next(each for each in manifests if each["metadata"]["name"] == "autodeploy-server")
    (container,) = server["spec"]["template"]["spec"]["containers"]
    for change in ({"image": "autodeploy:latest"}, {"readinesProbe": {}}, {"ports": [{"containerPort": "8000"}]}):
        container_of = server["spec"]["template"]["spec"] | {"containers": [container | change]}
        template = server["spec"]["template"] | {"spec": container_of}
        assert list(validator.iter_errors(server | {"spec": server["spec"] | {"template": template}})), change


def test_manifests_select_their_pods_and_probe_where_they_listen(manifests):
    (settings,) = [each["data"] for each in manifests if each["kind"] == "ConfigMap"]
    assert {name.removeprefix("AUTODEPLOY_").lower() for name in settings} <= set(Settings.model_fields)
    ports = {"http": settings["AUTODEPLOY_PORT"], "health": settings["AUTODEPLOY_WORKER_PORT"]}
    (service,) = [each["spec"] for each in manifests if each["kind"] == "Service"]
    for deployment in (each["spec"] for each in manifests if each["kind"] == "Deployment"):
        labels = deployment["template"]["metadata"]["labels"]
        assert deployment["selector"]["matchLabels"] == labels
        (container,) = deployment["template"]["spec"]["containers"]
        (port,) = container["ports"]
        assert str(port["containerPort"]) == ports[port["name"]]
        probes = [container[f"{kind}Probe"]["httpGet"] for kind in ("startup", "liveness", "readiness")]
        assert {probe["port"] for probe in probes} == {port["name"]}
        if container["args"] == ["serve"]:
            assert service["selector"] == labels
            assert [probe["path"] for probe in probes] == ["/livez", "/livez", "/readyz"]


@pytest.mark.parametrize("name", ["server", "worker"])
def test_units_are_valid(name, tmp_path):
    text = (ROOT / "examples" / "deploy" / "systemd" / f"autodeploy-{name}.service").read_text(encoding="utf-8")
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(text)
    assert parser.sections() == ["Unit", "Service", "Install"]
    service = parser["Service"]
    assert service["ExecStart"].split()[1:] == [{"server": "serve"}.get(name, name)]
    assert service["User"] == "autodeploy"
    assert service["Restart"] == "always"
    environment = (ROOT / "examples" / "deploy" / "systemd" / "autodeploy.env").read_text(encoding="utf-8")
    said = {line.partition("=")[0] for line in environment.splitlines() if line and not line.startswith("#")}
    assert {each.removeprefix("AUTODEPLOY_").lower() for each in said} <= set(Settings.model_fields)
    verify = shutil.which("systemd-analyze")
    if verify is not None:  # systemd's own word, where it is
        unit = tmp_path / f"autodeploy-{name}.service"
        unit.write_text(re.sub(r"=/(opt|usr/bin)/\S+", "=/bin/true", text), encoding="utf-8")
        checked = subprocess.run([verify, "verify", unit], capture_output=True, text=True, check=False)
        assert (checked.returncode, checked.stderr) == (0, "")


def test_a_worker_is_asked_where_it_answers(compose):
    worker = compose["services"]["worker"]
    (port,) = re.findall(r"127\.0\.0\.1:(\d+)/livez", worker["healthcheck"]["test"][-1])
    assert worker["environment"]["AUTODEPLOY_WORKER_PORT"] == port


def test_the_image_does_not_run_as_root_and_copies_what_is_there():
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    users = re.findall(r"^USER (\S+)", text, flags=re.MULTILINE)
    assert users == ["10001"]
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    for line in re.findall(r"^COPY (?!--from)(.*)$", text, flags=re.MULTILINE):
        for source in line.split()[:-1]:
            assert (ROOT / source).exists()
            assert source not in ignored
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]["build"]["targets"]
    assert all(f"COPY {package} {package}" in text for package in wheel["wheel"]["packages"])


def test_the_image_gets_all_it_needs_and_no_tool(runtime_lock):
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    part = runtime_lock.part_of(lock, runtime_lock.wanted_names(project, ["postgres"]))
    names = set(runtime_lock.locked_blocks(part))
    assert not names & {"pytest", "mypy", "ruff", "hypothesis", "playwright", "schemathesis"}
    assert {"numpy", "ortools", "procrastinate", "psycopg-binary"} <= names
    environment = {"extra": ""}
    for name in sorted(names - {"colorama", "tzdata"}):  # for Windows
        for line in metadata.requires(name) or []:
            needed = Requirement(line)
            if needed.marker is None or needed.marker.evaluate(environment):
                assert canonicalize_name(needed.name) in names, f"{name} needs {needed.name}"


@pytest.fixture
def port() -> str:
    """Where the server listens."""
    return str(free_port())


@pytest.fixture
def worker_port() -> str:
    """Where the worker says that it lives."""
    return str(free_port())


@pytest.fixture
def programs(compose, port, worker_port, empty_postgres_dsn, tmp_path) -> Iterator[dict[str, Program]]:
    """The programs of the compose file, with their commands and settings, on the test's database and a free port."""
    made = {}
    for name in ("migrate", "api", "worker"):
        service = compose["services"][name]
        settings = service["environment"] | {"AUTODEPLOY_DATABASE_URL": empty_postgres_dsn, "AUTODEPLOY_PORT": port}
        if name == "worker":
            settings["AUTODEPLOY_WORKER_PORT"] = worker_port
        # What has an empty default is an empty text for compose, and nothing where YAML reads it after that.
        environment = {key: "" if value is None else str(value) for key, value in settings.items()}
        # `tests/integration/test_serve_start.py` starts a server in a new interpreter.
        made[name] = Program(service["command"], environment, tmp_path / f"{name}.log", forked=name != "worker")
    yield made
    for program in made.values():
        program.stop()


def test_the_compose_file_asks_for_keys(compose, compose_sqlite):
    """Unless that is said to be unwanted; and the documentation tells how to get the first one."""
    for service in (compose["services"]["api"], compose_sqlite["services"]["sqlite"]):
        assert service["environment"]["AUTODEPLOY_AUTH"] == "keys"
    guide = (ROOT / "docs" / "how-to" / "deploy.md").read_text(encoding="utf-8")
    assert "docker compose exec api autodeploy keys create" in guide


def test_the_programs_of_the_compose_file_work_together(programs, port, empty_postgres_dsn, tmp_path):
    """Migrate, make a key, serve, work, stop: requests are answered to their end, the running search waits again."""
    migrate, api, worker = programs["migrate"], programs["api"], programs["worker"]
    url = f"http://127.0.0.1:{port}"
    migrate.start()
    assert migrate.wait() == 0
    maker = Program(
        ["keys", "create", "me", "--scope", "admin"],
        {"AUTODEPLOY_DATABASE_URL": empty_postgres_dsn},
        tmp_path / "key",
        forked=True,
    )
    maker.start()
    assert maker.wait() == 0
    (key,) = re.findall(r"^adk_\S+$", maker.log_path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    headers = {"Authorization": f"Bearer {key}"}
    api.start()
    worker.start()
    wait_until_ready(url, api)
    assert plain_http.get(f"{url}/v1/searches").status_code == 401
    done = plain_http.post(f"{url}/v1/searches", json=SPEC, headers=headers | {"Prefer": "wait=60"}, timeout=90)
    assert done.status_code == 200
    assert done.json()["status"] in {"optimal", "feasible"}

    answers: list[httpx.Response] = []

    def submit_and_wait() -> None:
        answers.append(plain_http.post(f"{url}/v1/searches?wait=100", json=LONG_SPEC, headers=headers, timeout=120))

    client = threading.Thread(target=submit_and_wait)
    client.start()
    with open_services(Settings(database_url=empty_postgres_dsn)) as services:
        (running,) = eventually(
            lambda: [item.id for item in services.searches.list().items if item.status == "running"], within_s=60
        )
        assert api.stop() == 0
        client.join()
        assert answers[0].status_code == 202
        assert children_of(worker.pid) != []
        assert worker.stop() == 0
        assert services.searches.status(running) == "queued"
        assert services.searches.events(running)[-1].data["reason"] == "shutdown"
    for program in (api, worker):
        log = program.log_path.read_text(encoding="utf-8")
        assert log
        assert key not in log


def test_the_wheel_has_everything_an_installed_service_reads(tmp_path):
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*command, "--wheel-dir", str(tmp_path), str(ROOT)], check=True, capture_output=True)
    (wheel,) = tmp_path.glob("autodeploy-*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
    packages = ("autodeploy/", "api/", "cost_models/", "hardware_profiles/", "migrations/")
    assert {name for name in tracked if name.startswith(packages)} - names == set()
