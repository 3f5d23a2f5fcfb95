"""The manifests, as kustomize makes them, against the schemas of the API."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "deploy/kubernetes"
VARIANTS = ("base", "overlays/gpu-nodes", "overlays/persistent", "sidecar")


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
