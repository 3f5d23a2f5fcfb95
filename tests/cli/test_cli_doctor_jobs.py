# SPDX-License-Identifier: Apache-2.0
"""reprise doctor: GPUs, jobs that are seen, and what a daemon lost."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cli_program import VERSION, Reprise
from doctor_checks import Check, checks, doctor_of_nobody, for_nobody, lines
from serving import until

HERE = Path(__file__).parent

# Loads a library, does what it is told to with the agent, says that it has, and waits.
JOB = """
import ctypes, os, sys
library = ctypes.CDLL(sys.argv[1])
if "start" in sys.argv:
    library.reprise_start(None)
    library.reprise_step(ctypes.c_uint64(1))
print(os.getpid(), flush=True)
sys.stdin.read()
"""

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(reprise: Reprise) -> Iterator[Start]:
    """Starts a job with a library loaded; it ends with the test."""
    jobs: list[subprocess.Popen[str]] = []

    def begin(library: Path, *words: str, **environment: str) -> subprocess.Popen[str]:
        job = subprocess.Popen(
            [sys.executable, "-c", JOB, str(library), *words],
            env={**reprise.environment, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        jobs.append(job)
        return job

    yield begin
    for job in jobs:
        assert job.stdin is not None
        job.stdin.close()
        job.wait(timeout=30)


def agent(reprise: Reprise) -> Path:
    return reprise.program.parent.parent / "lib" / "libreprise_agent.so"


def says(job: subprocess.Popen[str]) -> int:
    assert job.stdout is not None
    return int(job.stdout.readline())


def compiled(source: Path, to: Path) -> Path:
    subprocess.run(["cc", "-shared", "-fPIC", str(source), "-o", str(to)], check=True)
    return to


# ---- Jobs -----------------------------------------------------------------------


def test_a_job_that_is_connected_is_counted(
    reprise: Reprise, server: subprocess.Popen[str], start: Start
) -> None:
    pid = says(start(agent(reprise), "start"))

    found = lines(reprise)

    (count,) = [line for line in found if line["check"] == "sessions"]
    assert count["found"].startswith("1 job connected")
    assert any(line["check"] == "agent" and f"pid {pid}, run " in line["found"] for line in found)


# ---- Devices --------------------------------------------------------------------


@pytest.fixture
def nvml(tmp_path: Path) -> str:
    folder = tmp_path / "nvml"
    folder.mkdir()
    compiled(HERE / "fake_nvml.c", folder / "libnvidia-ml.so.1")
    return str(folder)


def test_a_gpu_without_anything_special_is_fine(reprise: Reprise, nvml: str) -> None:
    gpu = checks(reprise, LD_LIBRARY_PATH=nvml)["gpu"]

    assert (gpu["health"], gpu["found"], gpu["advice"]) == ("ok", "Fake H100", "")


def test_the_numa_node_that_a_gpu_is_near_is_said(reprise: Reprise, nvml: str) -> None:
    gpu = checks(reprise, LD_LIBRARY_PATH=nvml, FAKE_NODES="2")["gpu"]

    assert (gpu["health"], gpu["found"]) == ("ok", "Fake H100, near NUMA node 1")
    assert "numactl --cpunodebind=1 --membind=1" in gpu["advice"]


@pytest.mark.parametrize("nodes", ["3", "0"])
def test_of_a_gpu_that_is_near_several_nodes_none_is_named(
    reprise: Reprise, nvml: str, nodes: str
) -> None:
    gpu = checks(reprise, LD_LIBRARY_PATH=nvml, FAKE_NODES=nodes)["gpu"]

    assert (gpu["found"], gpu["advice"]) == ("Fake H100", "")


def test_host_memory_that_is_free_and_may_be_locked_is_said(reprise: Reprise) -> None:
    found = checks(reprise)["memory"]["found"]

    assert " free" in found
    assert found.endswith("(ulimit -l)")


@pytest.mark.parametrize(
    ("setting", "advised"),
    [("", True), ("max_split_size_mb:64", True), ("expandable_segments:True", False)],
)
def test_expandable_segments_are_advised_where_a_gpu_is_and_nobody_set_them(
    reprise: Reprise, nvml: str, setting: str, advised: bool
) -> None:
    found = checks(reprise, LD_LIBRARY_PATH=nvml, PYTORCH_CUDA_ALLOC_CONF=setting)["allocator"]

    assert found["health"] == "ok"
    assert ("expandable_segments:True leaves less" in found["advice"]) == advised
    assert (setting or "is not set") in found["found"]


@pytest.mark.skipif(Path("/proc/driver/nvidia").exists(), reason="a driver is here")
def test_without_a_gpu_nothing_is_said_of_its_allocator(reprise: Reprise) -> None:
    found = checks(reprise)

    assert found["gpu"]["found"] == "no NVIDIA GPU is seen here"
    assert "allocator" not in found


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("FAKE_MIG", "MIG is on"),
        ("FAKE_VGPU", "a vGPU: CUPTI may refuse"),
        ("FAKE_CC", "confidential computing is on"),
    ],
)
def test_what_may_keep_cupti_from_tracing_is_said(
    reprise: Reprise, nvml: str, setting: str, words: str
) -> None:
    gpu = checks(reprise, LD_LIBRARY_PATH=nvml, **{setting: "1"})["gpu"]

    assert gpu["health"] == "warning"
    assert words in gpu["found"]
    assert "timed by the host" in gpu["advice"]


def driver(folder: Path, version: int) -> None:
    """One that has a device."""
    source = folder / "driver.c"
    source.write_text(
        f"int cuDriverGetVersion(int *v) {{ *v = {version}; return 0; }}\n"
        "int cuInit(unsigned f) { return f; }\n"
        "int cuDeviceGetCount(int *n) { *n = 1; return 0; }\n"
    )
    compiled(source, folder / "libcuda.so.1")


def test_what_was_not_tried_is_not_said_to_work(reprise: Reprise, tmp_path: Path) -> None:
    driver(tmp_path, 13000)
    fake = reprise.program.parent.parent / "lib" / "libfake_cupti_130.so"
    assert fake.exists(), f"{fake}: not built; run scripts/build --tests"

    found = lines(reprise, LD_LIBRARY_PATH=str(tmp_path), REPRISE_CUPTI_PATH=str(fake))

    (gpu,) = [line for line in found if line["check"] == "gpu"]
    assert (gpu["health"], gpu["advice"]) == ("warning", "see nvidia-smi")
    assert "libnvidia-ml lists no GPU: their models are not known" in gpu["found"]
    (line,) = [line for line in found if str(fake) in line["found"]]
    assert "whether it may trace was not checked" in line["found"]


def test_a_libcupti_that_is_newer_than_the_driver_is_a_warning(
    reprise: Reprise, tmp_path: Path
) -> None:
    driver(tmp_path, 12040)
    fake = reprise.program.parent.parent / "lib" / "libfake_cupti_130.so"
    assert fake.exists(), f"{fake}: not built; run scripts/build --tests"

    found = lines(reprise, LD_LIBRARY_PATH=str(tmp_path), REPRISE_CUPTI_PATH=str(fake))

    (line,) = [line for line in found if str(fake) in line["found"]]
    assert line["health"] == "warning"
    assert "newer than the driver, which is for CUDA 12.4" in line["found"]
    assert "update the driver, or install a torch for CUDA 12" in line["advice"]
    # A job of torch has loaded its own before the agent looks for one.
    assert "loaded, whatever REPRISE_CUPTI_PATH names" in line["advice"]


def test_a_libcupti_that_crashes_without_a_driver_is_no_problem_there(
    reprise: Reprise, tmp_path: Path
) -> None:
    # As that of CUDA 13.2, which calls itself until its stack is full.
    source = tmp_path / "cupti.c"
    source.write_text("int cuptiGetVersion(unsigned *v) { *v = 0; __builtin_trap(); }\n")
    fake = tmp_path / "libcupti.so.13"
    compiled(source, fake)

    alone = lines(reprise, REPRISE_CUPTI_PATH=str(fake))
    driver(tmp_path, 13020)
    path = str(tmp_path)
    beside = lines(reprise, code=1, LD_LIBRARY_PATH=path, REPRISE_CUPTI_PATH=str(fake))

    (line,) = [line for line in alone if str(fake) in line["found"]]
    assert line["health"] == "ok"
    assert "only where there is an NVIDIA driver, so it was not checked" in line["found"]
    (line,) = [line for line in beside if line["found"] == f"{fake}: is no working libcupti"]
    assert line["health"] == "problem"


# ---- The daemon -----------------------------------------------------------------


def test_a_daemon_says_who_listens_what_it_speaks_and_its_time(
    reprise: Reprise, server: subprocess.Popen[str]
) -> None:
    found = checks(reprise)

    assert f"a daemon listens, process {server.pid} of " in found["socket"]["found"]
    assert found["server"]["found"].startswith(f"reprised {VERSION} at ")
    assert found["server"]["found"].endswith(", ring layout 1, protocol 1")
    assert found["clock"]["found"].startswith("the server's differs by less than")
    assert ", logs of both " in found["store"]["found"]
    assert found["losses"]["found"] == "no run was recorded yet"


def test_records_that_the_last_run_lost_are_a_warning(
    reprise: Reprise, server: subprocess.Popen[str], tmp_path: Path
) -> None:
    # 4,096 slots, and 50,000 marks before anybody looks at them.
    script = tmp_path / "flood.py"
    script.write_text(
        "import ctypes, struct, sys\n"
        "library = ctypes.CDLL(sys.argv[1])\n"
        "class Config(ctypes.Structure):\n"
        "    _fields_ = [(n, ctypes.c_uint32) for n in ('size', 'abi', 'slots', 'flags')] + [\n"
        "        (n, ctypes.c_char_p) for n in ('socket', 'sink', 'cupti', 'run', 'labels')]\n"
        "library.reprise_start(ctypes.byref(Config(ctypes.sizeof(Config), 1, 4096)))\n"
        "import os, signal\n"
        f"os.kill({server.pid}, signal.SIGSTOP)\n"
        "for i in range(50000): library.reprise_op_end(ctypes.c_uint64(i))\n"
        f"os.kill({server.pid}, signal.SIGCONT)\n"
        "library.reprise_flush(5000)\n"
        "library.reprise_step(ctypes.c_uint64(1))\n"
        "library.reprise_stop()\n"
    )
    subprocess.run(
        [sys.executable, script, agent(reprise)], env=reprise.environment, timeout=60, check=True
    )

    def losses() -> Check:
        return checks(reprise)["losses"]

    until("the run is stored", 30, lambda: "no run" not in losses()["found"])
    found = losses()
    assert found["health"] == "warning"
    assert " records that did not fit into its ring, and 0 chunks" in found["found"]
    assert "marked as incomplete" in found["advice"]


def test_a_socket_left_behind_says_whether_its_lock_is_stale(reprise: Reprise) -> None:
    path = Path(reprise.environment["REPRISE_SOCKET"])
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as left:
        left.bind(str(path))  # nobody listens
    (path.parent / "reprised.lock").write_text("1\n")

    stale = checks(reprise, code=1)["socket"]["found"]
    holder = subprocess.Popen(
        ["flock", path.parent / "reprised.lock", "sh", "-c", "echo held; read end"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        held = checks(reprise, code=1)["socket"]["found"]
    finally:
        holder.communicate("\n", timeout=30)

    assert stale.endswith("its lock is stale: no process holds it")
    assert f"process {holder.pid} holds its lock" in held


@pytest.mark.skipif(os.geteuid() != 0, reason="root may use any socket: nobody tries one of its")
def test_a_socket_that_may_not_be_used_says_which_group_may(reprise: Reprise) -> None:
    with (
        for_nobody(reprise) as folder,
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener,
    ):
        path = folder / "agent.sock"
        listener.bind(str(path))
        listener.listen()
        path.chmod(0o660)
        done = doctor_of_nobody(folder, REPRISE_SOCKET=str(path))

    assert done.returncode == 1
    assert f"{path} (REPRISE_SOCKET), mode 660, of root: permission denied" in done.stdout
    assert "-> join its group root and log in again, or run as its owner" in done.stdout
