"""The manifests, as kustomize makes them, against the schemas of the API."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "deploy/kubernetes"
VARIANTS = (
    "base",
    "overlays/gpu-nodes",
    "overlays/persistent",
    "overlays/network",
    "overlays/forwarding",
    "replicas",
    "sidecar",
)


def manifest(variant: str) -> str:
    done = subprocess.run(
        ["kubectl", "kustomize", FOLDER / variant], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def resources(variant: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(manifest(variant)))


def containers(resource: dict[str, Any]) -> list[dict[str, Any]]:
    pod = resource.get("spec", {}).get("template", {}).get("spec", {})
    return [*pod.get("initContainers", []), *pod.get("containers", [])]


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_variant_is_valid_for_the_api(variant: str, tmp_path: Path) -> None:
    file = tmp_path / "all.yaml"
    file.write_text(manifest(variant))

    validator = Path(os.environ["REPRISE_DEPLOY"]) / "bin/kubernetes-validate"
    done = subprocess.run([validator, "--strict", file], capture_output=True, text=True)

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_container_is_confined(variant: str) -> None:
    found = [one for resource in resources(variant) for one in containers(resource)]

    assert found
    for one in found:
        context = one["securityContext"]
        assert context["allowPrivilegeEscalation"] is False
        assert context["capabilities"]["drop"] == ["ALL"]
        if one["name"] != "train":
            assert context["readOnlyRootFilesystem"] is True


def test_an_overlay_changes_what_it_is_for() -> None:
    (gpu,) = (one for one in resources("overlays/gpu-nodes") if one["kind"] == "DaemonSet")
    (kept,) = (one for one in resources("overlays/persistent") if one["kind"] == "DaemonSet")
    volumes = {one["name"]: one for one in kept["spec"]["template"]["spec"]["volumes"]}

    assert gpu["spec"]["template"]["spec"]["nodeSelector"] == {"nvidia.com/gpu.present": "true"}
    assert volumes["state"]["hostPath"]["path"] == "/var/lib/reprise"
    assert volumes["run"]["hostPath"]["path"] == "/run/reprise"


def test_nodes_that_forward_reach_the_centre_with_its_token_and_nothing_else() -> None:
    found = {one["kind"]: one for one in resources("overlays/forwarding")}
    centre = {one["kind"]: one for one in resources("replicas")}
    pod = found["DaemonSet"]["spec"]["template"]
    (daemon,) = pod["spec"]["containers"]
    flags = dict(flag.split("=", 1) for flag in daemon["args"] if "=" in flag)
    (port,) = centre["Service"]["spec"]["ports"]
    name = f"{centre['Service']['metadata']['name']}.{centre['Service']['metadata']['namespace']}"

    assert flags["--forward-to"] == f"{name}.svc:{port['port']}"
    mounts = {one["mountPath"] for one in daemon["volumeMounts"]}
    files = [value for flag, value in flags.items() if flag != "--forward-to"]
    assert len(files) == 4
    assert {os.path.dirname(file) for file in files} <= mounts
    # The centre's policy lets it in, its own lets it out to there and to the names' server alone.
    (ingress,) = centre["NetworkPolicy"]["spec"]["ingress"]
    (client,) = ingress["from"]
    assert client["podSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    policy = found["NetworkPolicy"]["spec"]
    assert "ingress" not in policy
    to_centre, names = policy["egress"]
    (to,) = to_centre["to"]
    replicas = centre["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert to["podSelector"]["matchLabels"].items() <= replicas.items()
    assert [one["port"] for one in names["ports"]] == [53, 53]
    # What waits for the centre outlives the pod.
    volumes = {one["name"]: one for one in pod["spec"]["volumes"]}
    assert "hostPath" in volumes["state"]


def test_replicas_keep_no_run_and_have_no_password_in_their_command_line() -> None:
    found = {one["kind"]: one for one in resources("replicas")}
    pod = found["Deployment"]["spec"]["template"]
    (daemon,) = pod["spec"]["containers"]

    assert found["Deployment"]["spec"]["replicas"] == 2
    (store,) = (one for one in daemon["args"] if one.startswith("--store="))
    assert "sslmode=verify-full" in store
    assert re.match(r"--store=postgresql://[^:/]+@", store), "no password before the host"
    assert [one["name"] for one in daemon["env"] if "secretKeyRef" in one["valueFrom"]] == [
        "PGPASSWORD"
    ]
    assert all(
        "hostPath" not in one and "persistentVolumeClaim" not in one
        for one in pod["spec"]["volumes"]
    )
    assert daemon["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert found["Service"]["spec"]["selector"] == pod["metadata"]["labels"]


def test_beyond_its_pod_the_daemon_is_reached_over_tls_with_a_token_alone() -> None:
    found = {one["kind"]: one for one in resources("overlays/monitored")}
    (daemon,) = found["DaemonSet"]["spec"]["template"]["spec"]["containers"]
    monitor = found["ServiceMonitor"]["spec"]
    (rule,) = found["NetworkPolicy"]["spec"]["ingress"]

    flags = {flag.split("=")[0] for flag in daemon["args"]}
    assert {"--tls-cert", "--tls-key", "--token-file"} <= flags
    assert rule["ports"] == [{"protocol": "TCP", "port": 7443}]
    assert daemon["ports"] == [{"name": "https", "containerPort": 7443}]
    (port,) = found["Service"]["spec"]["ports"]
    assert port["targetPort"] == "https"
    assert found["Service"]["spec"]["selector"] == monitor["selector"]["matchLabels"]
    (endpoint,) = monitor["endpoints"]
    assert (endpoint["port"], endpoint["scheme"]) == (port["name"], "https")
    volumes = found["DaemonSet"]["spec"]["template"]["spec"]["volumes"]
    secrets = {one["secret"]["secretName"] for one in volumes if "secret" in one}
    assert endpoint["authorization"]["credentials"]["name"] in secrets
    assert endpoint["tlsConfig"]["ca"]["secret"]["name"] in secrets
    # Nothing of that is there without being asked for.
    assert {one["kind"] for one in resources("base")} & {
        "Service",
        "ServiceMonitor",
    } == set()
