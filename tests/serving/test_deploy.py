"""The files of `deploy/`, as far as they can be checked without Docker and Kubernetes."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
import tomllib
import zipfile
from contextlib import suppress
from pathlib import Path

import httpx
import pytest
import yaml
from support.service import free_port
from support.small_model import write_model

import gidd
from gidd.cli.model_options import parse_checked
from gidd.cli.serve import ServeOptions, application

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
SERVICE, POLICY = yaml.safe_load_all((DEPLOY / "rayservice.yaml").read_text())
RAY = SERVICE["spec"]
SERVE = yaml.safe_load(RAY["serveConfigV2"])
DASHBOARD = json.loads((DEPLOY / "grafana" / "gidd.json").read_text())


def instructions() -> list[tuple[str, str]]:
    """Return the instructions of the Dockerfile and their arguments."""
    text = re.sub(r"^\s*#.*\n", "", (DEPLOY / "Dockerfile").read_text(), flags=re.M)
    lines = [line for line in text.replace("\\\n", " ").splitlines() if line.strip()]
    return [(line.split()[0], line.split(maxsplit=1)[1]) for line in lines]


def arguments(name: str) -> list[str]:
    return [rest for found, rest in instructions() if found == name]


def sources() -> list[str]:
    """Return what the Dockerfile copies."""
    return [source for rest in arguments("COPY") for source in rest.split()[:-1]]


def options_of(command: list[str]) -> ServeOptions:
    return parse_checked(ServeOptions, "gidd serve", None, command)


def test_the_dockerfile_is_well_formed():
    known = "FROM|ARG|RUN|WORKDIR|COPY|USER|EXPOSE|HEALTHCHECK|ENTRYPOINT|CMD"
    names = [name for name, _ in instructions()]
    assert names[0] == "FROM" and all(re.fullmatch(known, name) for name in names)
    for command in arguments("RUN"):
        subprocess.run(["sh", "-n", "-c", command], check=True)
    (user,), (entry,) = arguments("USER"), arguments("ENTRYPOINT")
    assert f"--uid {user} " in " ".join(arguments("RUN")) and int(user) > 0
    assert json.loads(entry)[:2] == ["gidd", "serve"] and "gidd" in PROJECT["scripts"]
    assert options_of([*json.loads(entry)[2:], "nano"]).host == "0.0.0.0"
    used = dict(argument.split("=", 1) for argument in arguments("ARG"))
    assert set(COMPOSE["gidd"]["build"]["args"]) <= set(used)
    assert used["EXTRAS"] in PROJECT["optional-dependencies"]
    assert "replicas" in PROJECT["optional-dependencies"]  # of rayservice.yaml
    torch = next(one for one in PROJECT["dependencies"] if one.startswith("torch"))
    assert f'"{torch}"' in " ".join(arguments("RUN"))


@pytest.mark.slow
def test_the_copied_files_are_a_package(tmp_path):
    """What the Dockerfile copies is enough for pip, and has the files that the service needs."""
    kept = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    assert {line[1:] for line in kept if line.startswith("!")} == set(sources())
    for name in sources():
        found = ROOT / name
        copy = shutil.copytree if found.is_dir() else shutil.copy
        copy(found, tmp_path / name)
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {"gidd/serving/page.html", "gidd/cli/serve.py"} <= set(names)


def test_ports_and_paths_agree(service):
    (port,) = arguments("EXPOSE")
    (check,), (entry,) = arguments("HEALTHCHECK"), arguments("ENTRYPOINT")
    assert json.loads(entry)[-2:] == ["--port", port]
    url, path = re.findall(r"http://([\w.:]+)(/\w+)", check)[0]
    assert url == f"127.0.0.1:{port}" and httpx.get(service.url + path).status_code == 200
    published = {name: one["ports"][0].split(":") for name, one in COMPOSE.items()}
    assert all(host == "127.0.0.1" for host, _, _ in published.values())
    assert published["gidd"][2] == port
    (scraped,) = yaml.safe_load((DEPLOY / "prometheus.yaml").read_text())["scrape_configs"]
    assert scraped["static_configs"] == [{"targets": [f"gidd:{port}"]}]
    assert httpx.get(service.url + scraped["metrics_path"]).status_code == 200
    (source,) = yaml.safe_load((DEPLOY / "grafana" / "datasource.yaml").read_text())["datasources"]
    assert source["url"] == f"http://prometheus:{published['prometheus'][2]}"
    for panel in DASHBOARD["panels"]:
        assert panel["datasource"] == {"type": source["type"], "uid": source["uid"]}
    assert SERVE["http_options"]["port"] == int(port)
    (worker,) = RAY["rayClusterConfig"]["workerGroupSpecs"]
    head = RAY["rayClusterConfig"]["headGroupSpec"]
    for group in (head, worker):
        (container,) = group["template"]["spec"]["containers"]
        assert {"name": "serve", "containerPort": int(port)} in container["ports"]


def test_mounted_files_exist():
    targets = {}
    for one in COMPOSE.values():
        for volume in one["volumes"]:
            source, target, mode = re.sub(r"\$\{\w+:-(.*?)\}", r"\1", volume).split(":")
            targets[target] = DEPLOY / source
            assert mode == "ro" and (targets[target].is_file() or target == "/models")
    providers = yaml.safe_load((DEPLOY / "grafana" / "dashboards.yaml").read_text())["providers"]
    assert f"{providers[0]['options']['path']}/gidd.json" in targets
    home = COMPOSE["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert home in targets


def test_the_dashboard_shows_metrics_of_the_service(service):
    httpx.get(f"{service.url}/v1/models")
    exported = httpx.get(f"{service.url}/metrics").text
    names = set(re.findall(r"^(gidd_\w+)", exported, flags=re.M))
    queries = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    shown = {name for query in queries for name in re.findall(r"gidd_\w+", query)}
    assert shown <= names and len(shown) >= 12
    for query in queries:
        for labels in re.findall(r"by \((\w+)\)", query):
            assert f'{labels}="' in exported


def test_options_exist_and_grace_is_longer_than_a_request():
    command = [re.sub(r"\$\{\w+:-(.*?)\}", r"\1", one) for one in COMPOSE["gidd"]["command"]]
    options = options_of(command)
    assert "gidd" in options.service.allowed_hosts  # by which Prometheus reaches it
    assert float(COMPOSE["gidd"]["stop_grace_period"].rstrip("s")) > options.worker.seconds
    (one,) = SERVE["applications"]
    options = options_of(shlex.split(one["args"]["command"]))
    (worker,) = RAY["rayClusterConfig"]["workerGroupSpecs"]
    pod = worker["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] > options.worker.seconds
    assert SERVE["http_options"]["request_timeout_s"] == options.worker.seconds
    assert (worker["minReplicas"], worker["maxReplicas"]) == (
        options.replicas,
        options.max_replicas,
    )
    (mount,) = pod["containers"][0]["volumeMounts"]
    assert options.models[0].startswith(f"{mount['mountPath']}/")


def test_pods_have_no_rights_and_do_not_start_without_a_key():
    cluster = RAY["rayClusterConfig"]
    (worker,) = cluster["workerGroupSpecs"]
    contexts = [cluster["autoscalerOptions"]["securityContext"]]
    for group in (cluster["headGroupSpec"], worker):
        (container,) = group["template"]["spec"]["containers"]
        contexts.append(container["securityContext"])
        (key,) = (one for one in container["env"] if one["name"] == "GIDD_API_KEY")
        assert "optional" not in key["valueFrom"]["secretKeyRef"]
    for context in contexts:
        assert context["runAsNonRoot"] and context["runAsUser"] == int(arguments("USER")[0])
        assert context["allowPrivilegeEscalation"] is False
        assert context["capabilities"] == {"drop": ["ALL"]}


def test_only_the_service_is_open_to_clients():
    """Who reaches Ray's dashboard or its client port runs any code."""
    cluster = RAY["rayClusterConfig"]
    (worker,) = cluster["workerGroupSpecs"]
    selected = POLICY["spec"]["podSelector"]["matchLabels"]
    for group in (cluster["headGroupSpec"], worker):
        assert group["template"]["metadata"]["labels"] == selected
    ports = cluster["headGroupSpec"]["template"]["spec"]["containers"][0]["ports"]
    assert {port["name"] for port in ports} == {"gcs-server", "dashboard", "serve"}
    inside, operator, clients = POLICY["spec"]["ingress"]
    assert POLICY["kind"] == "NetworkPolicy" and POLICY["spec"]["policyTypes"] == ["Ingress"]
    assert inside == {"from": [{"podSelector": {"matchLabels": selected}}]}
    assert "kuberay-operator" in str(operator["from"])
    assert [port["port"] for port in operator["ports"]] == [8265]
    assert clients == {"ports": [{"protocol": "TCP", "port": int(arguments("EXPOSE")[0])}]}


def test_images_of_others_are_pinned_by_digest():
    for name in ("prometheus", "grafana"):
        assert re.fullmatch(r"[\w/]+:v?[\d.]+@sha256:[0-9a-f]{64}", COMPOSE[name]["image"])


@pytest.mark.slow
def test_ray_accepts_the_application():
    """Ray Serve's own schema, and the function that the manifest names."""
    schema = pytest.importorskip("ray.serve.schema", reason="pip install 'gidd[replicas]'")
    from ray.serve import Application

    found = schema.ServeDeploySchema(**SERVE)
    (one,) = found.applications
    assert one.import_path == f"{application.__module__}:{application.__name__}"
    built = application(one.args)
    assert isinstance(built, Application)
    deployment = built._bound_deployment
    scaling = deployment._deployment_config.autoscaling_config
    assert (scaling.min_replicas, scaling.max_replicas) == (2, 8)
    assert deployment.ray_actor_options["num_gpus"] == 1
    lowest = next(r for r in PROJECT["optional-dependencies"]["replicas"] if r.startswith("ray"))
    assert lowest == f"ray[serve]>={RAY['rayClusterConfig']['rayVersion']}"


@pytest.mark.long
def test_ray_serves_the_application(tmp_path):
    """The configuration of the manifest, with a small model on this machine."""
    pytest.importorskip("ray.serve", reason="pip install 'gidd[replicas]'")
    folder, port = write_model(tmp_path / "small", context=64), free_port()
    (one,) = SERVE["applications"]
    command = f"{shlex.quote(str(folder))} --replicas 1 --max-replicas 2"
    config = {
        "http_options": {**SERVE["http_options"], "host": "127.0.0.1", "port": port},
        "applications": [{**one, "args": {"command": command}}],
    }
    file, url = tmp_path / "serve.yaml", f"http://127.0.0.1:{port}"
    file.write_text(yaml.safe_dump(config))
    environment = os.environ | {"RAY_AUTH_MODE": "disabled", "OMP_NUM_THREADS": "1"}
    environment.pop("RAY_ADDRESS", None)
    run = [sys.executable, "-m", "ray.serve.scripts", "run", str(file)]
    with subprocess.Popen(run, env=environment, stderr=subprocess.DEVNULL) as process:
        try:
            for _ in range(240):
                assert process.poll() is None
                with suppress(httpx.TransportError):
                    if httpx.get(f"{url}/healthz").status_code == 200:
                        break
                time.sleep(0.5)
            body = {"prompt": "I", "max_tokens": 8, "steps": 4, "seed": 3}
            found = httpx.post(f"{url}/v1/completions", json=body, timeout=60).json()
        finally:
            process.terminate()  # SIGINT is ignored by children of a shell's background jobs
    (expected,) = gidd.from_pretrained(folder).generate(prompt="I", max_tokens=8, steps=4, seed=3)
    assert found["choices"][0]["text"] == expected.filled[0]
