# SPDX-License-Identifier: Apache-2.0
"""reprise doctor: what works here, on machines with and without the parts."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from cli_program import VERSION, Reprise
from doctor_checks import checks, doctor_of_nobody, for_nobody

NAMES = {
    "reprise",
    "driver",
    "gpu",
    "namespaces",
    "ring",
    "libcupti",
    "injection",
    "python",
    "socket",
    "server",
    "sessions",
    "agent library",
}


def test_a_machine_without_anything_is_not_broken(reprise: Reprise) -> None:
    empty = reprise.folder / "bin"
    empty.mkdir()

    found = checks(reprise, PATH=str(empty))

    assert set(found) >= NAMES
    assert found["ring"]["health"] == "ok"
    assert "no daemon runs" in found["socket"]["found"]
    assert "no Python answers" in found["python"]["found"]
    if not Path("/proc/driver/nvidia").exists():
        assert "no NVIDIA driver" in found["driver"]["found"]
    assert found["libcupti"]["health"] == "ok"  # found, or missed by nobody


def test_every_line_says_its_health_and_the_last_one_counts(reprise: Reprise) -> None:
    result = reprise("doctor")

    assert result.code == 0, result
    lines = [line for line in result.out.splitlines() if not line.startswith(" ")]
    assert all(line.split()[0] in ("ok", "warning") for line in lines[:-1])
    assert lines[-1].startswith("0 problems, ")


def test_a_daemon_and_its_version_are_found(
    reprise: Reprise,
    server: subprocess.Popen[str],
) -> None:
    found = checks(reprise)

    assert "a daemon listens" in found["socket"]["found"]
    assert found["server"]["found"].startswith(f"reprised {VERSION} at http://127.0.0.1:")
    assert found["store"]["health"] == "ok"


def test_a_socket_left_behind_is_a_problem(reprise: Reprise) -> None:
    path = reprise.environment["REPRISE_SOCKET"]
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as left:
        left.bind(path)  # nobody listens

    found = checks(reprise, code=1)

    assert found["socket"]["health"] == "problem"
    assert "no process listens" in found["socket"]["found"]
    assert "reprise serve" in found["socket"]["advice"]
    assert "1 problem, " in reprise("doctor").out


def test_a_server_that_was_named_and_is_not_there_is_a_problem(
    reprise: Reprise,
) -> None:
    assert checks(reprise, "--server", "127.0.0.1:1", code=1)["server"]["health"] == "problem"


def test_names_who_has_the_injection_slot(reprise: Reprise) -> None:
    other = checks(reprise, CUDA_INJECTION64_PATH="/opt/nsys/libToolsInjection64.so")
    assert other["injection"]["health"] == "warning"
    assert "held by /opt/nsys/libToolsInjection64.so" in other["injection"]["found"]

    gone = checks(reprise, code=1, CUDA_INJECTION64_PATH="/gone/libreprise_agent.so")
    assert gone["injection"]["health"] == "problem"


def test_a_cupti_that_was_named_and_cannot_be_loaded_is_a_problem(
    reprise: Reprise,
) -> None:
    found = checks(reprise, code=1, REPRISE_CUPTI_PATH="/nowhere/libcupti.so")

    assert "cannot be loaded" in found["libcupti"]["found"]


def test_a_library_that_is_no_cupti_is_a_problem(reprise: Reprise) -> None:
    agent = reprise.program.parent.parent / "lib" / "libreprise_agent.so"

    found = checks(reprise, code=1, REPRISE_CUPTI_PATH=str(agent))

    assert found["libcupti"]["found"] == f"{agent}: is no working libcupti"


def test_the_python_that_is_named_is_asked(reprise: Reprise) -> None:
    found = checks(reprise, "--python", sys.executable)

    version = ".".join(str(part) for part in sys.version_info[:3])
    assert found["python"]["found"].startswith(version)
    assert "torch" in found
    wrong = checks(reprise, "--python", "/bin/true", code=1)
    assert wrong["python"]["health"] == "problem"


@pytest.mark.long
def test_a_python_that_is_slow_is_called_late_and_not_missing(reprise: Reprise) -> None:
    slow = reprise.folder / "python"
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o755)

    found = checks(reprise, "--python", str(slow))

    assert found["python"]["health"] == "warning"
    assert re.search(
        r"python did not answer within 10 s; the load is [\d.]+ on \d+ processor",
        found["python"]["found"],
    )


# ---- The agent ------------------------------------------------------------------


def test_the_agent_beside_the_command_is_loaded_and_says_its_version(reprise: Reprise) -> None:
    found = checks(reprise)["agent library"]

    assert found["health"] == "ok"
    assert found["found"].startswith("ABI 1, /")
    assert found["found"].endswith("/lib/libreprise_agent.so")


def test_an_agent_that_is_none_is_a_problem(reprise: Reprise) -> None:
    found = checks(reprise, code=1, REPRISE_AGENT="/nowhere/libreprise_agent.so")

    assert found["agent library"]["health"] == "problem"
    assert "/nowhere/libreprise_agent.so" in found["agent library"]["found"]


@pytest.mark.skipif(os.geteuid() != 0, reason="is another user than root already")
def test_it_works_for_a_user_who_is_not_root(reprise: Reprise) -> None:
    with for_nobody(reprise, "lib/libreprise_agent.so") as folder:
        done = doctor_of_nobody(folder, "--json")

    said = {check["check"]: check for check in json.loads(done.stdout)["checks"]}
    assert said["agent library"]["health"] == "ok", done.stdout
