# SPDX-License-Identifier: Apache-2.0
"""The command with a real server: serve, status, run, show."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import pytest
from cli_program import ROOT, VERSION, Reprise
from serving import until

JOB = [sys.executable, str(Path(__file__).with_name("job.py"))]


@pytest.fixture
def jobs(reprise: Reprise) -> Reprise:
    """The command, where jobs find the Python package and the agent."""
    agent = reprise.program.parent.parent / "lib" / "libreprise_agent.so"
    assert agent.is_file(), f"{agent}: not built"
    reprise.environment["REPRISE_AGENT"] = str(agent)
    reprise.environment["PYTHONPATH"] = str(ROOT / "clients" / "python" / "src")
    yield reprise
    # A private daemon of the test ends by itself two seconds after its last job.
    lock = Path(reprise.environment["XDG_RUNTIME_DIR"]) / "server.json"
    until("the private daemon has gone", 30, lambda: not lock.exists())


def test_status_tells_how_the_server_is(reprise: Reprise, server: subprocess.Popen[str]) -> None:
    result = reprise("status")

    assert result.code == 0, result
    assert result.out.startswith(f"reprised {VERSION} is running at http://127.0.0.1:")
    status = reprise("status", "--json").json()
    assert status["version"] == VERSION
    assert status["runs"] == 0
    assert status["agent_socket"] == reprise.environment["REPRISE_SOCKET"]


def test_what_the_server_does_not_know_is_a_failure(
    reprise: Reprise, server: subprocess.Popen[str]
) -> None:
    assert "no-such-run" in reprise.fails(1, "show", "no-such-run")
    assert "0000000000000001" in reprise.fails(1, "show", "0000000000000001")
    reprise.fails(1, "show", "latest")
    reprise.fails(1, "plan", "0123456789abcdef", "--budget", "1GiB", "--json")
    reprise.fails(1, "sweep", "0123456789abcdef")


def test_a_second_server_is_refused(reprise: Reprise, server: subprocess.Popen[str]) -> None:
    result = reprise("serve", "--listen", "127.0.0.1:0")

    assert result.code == 1
    assert str(server.pid) in result.err


def test_serve_has_the_usage_errors_of_reprised(reprise: Reprise) -> None:
    assert reprise("serve", "--frobnicate").code == 2
    assert reprise("serve", "--listen", "0.0.0.0:7070").code in (1, 2)


def test_run_passes_the_surroundings_on(jobs: Reprise, server: subprocess.Popen[str]) -> None:
    result = jobs("run", "--budget", "0.5x", "--name", "mine", "--", *JOB, "print")

    seen = json.loads(result.out)
    assert seen["REPRISE_BUDGET"] == "0.5x"
    assert seen["REPRISE_NAME"] == "mine"
    assert seen["REPRISE_SOCKET"] == jobs.environment["REPRISE_SOCKET"]
    assert seen["REPRISE_RUN_ID"] in result.err


# What the CUDA driver does when a program first uses CUDA; then one step.
DRIVER = """
import ctypes, os
library = ctypes.CDLL(os.environ["CUDA_INJECTION64_PATH"])
assert library.InitializeInjection() == 1
library.reprise_step(ctypes.c_uint64(1))
library.reprise_flush(2000)
library.reprise_stop()
"""


def test_run_has_the_driver_load_the_agent(jobs: Reprise, server: subprocess.Popen[str]) -> None:
    result = jobs("run", "--json", "--", sys.executable, "-c", DRIVER)

    assert result.code == 0, result
    run_id = result.json()["run_id"]

    def is_stored() -> bool:
        run = jobs("show", run_id, "--json").json()
        # A clock and a step.
        return run["state"] == "RUN_STATE_FINISHED" and int(run["records"]) >= 2

    until("the run is stored", 30, is_stored)


def test_run_starts_the_job_and_says_so_when_another_tool_has_the_slot(
    jobs: Reprise, server: subprocess.Popen[str]
) -> None:
    nsys = "/opt/nsys/libToolsInjection64.so"
    script = "import os; print(os.environ['CUDA_INJECTION64_PATH'])"

    result = jobs("run", "--", sys.executable, "-c", script, CUDA_INJECTION64_PATH=nsys)

    assert (result.code, result.out) == (0, nsys + "\n")
    assert f"CUDA_INJECTION64_PATH is held by {nsys}" in result.err
    assert "--keep-injection" in result.err


@pytest.mark.parametrize(
    ("flags", "slot"), [(["--keep-injection"], "/opt/nsys/libTools.so"), ([], "none")]
)
def test_run_leaves_the_slot_to_others_where_it_is_told_to(
    jobs: Reprise, server: subprocess.Popen[str], flags: list[str], slot: str
) -> None:
    script = "import os; print(os.environ['CUDA_INJECTION64_PATH'])"

    result = jobs("run", *flags, "--", sys.executable, "-c", script, CUDA_INJECTION64_PATH=slot)

    assert (result.code, result.out) == (0, slot + "\n")


def test_run_puts_nothing_into_the_slot_that_does_not_load(
    jobs: Reprise, server: subprocess.Popen[str]
) -> None:
    broken = jobs.folder / "libreprise_agent.so"
    broken.write_text("no library")
    script = "import os; print(os.environ.get('CUDA_INJECTION64_PATH'))"

    result = jobs("run", "--", sys.executable, "-c", script, REPRISE_AGENT=str(broken))

    assert (result.code, result.out) == (0, "None\n")


# A job that says that it stepped, and is killed.
KILLED = """
import ctypes, os, signal
library = ctypes.CDLL(os.environ["REPRISE_AGENT"])
library.reprise_start(None)
library.reprise_step(ctypes.c_uint64(1))
library.reprise_flush(2000)
os.kill(os.getpid(), signal.SIGKILL)
"""


def may_unshare() -> bool:
    if shutil.which("unshare") is None:
        return False
    return subprocess.run(["unshare", "--pid", "--fork", "true"], check=False).returncode == 0


@pytest.mark.long
@pytest.mark.skipif(not may_unshare(), reason="process namespaces may not be made here")
def test_a_daemon_in_a_process_namespace_of_its_own_sees_jobs_outside(
    jobs: Reprise, tmp_path: Path
) -> None:
    # Whose pids it cannot see: the kernel tells it 0, the agent its own.
    apart = ("unshare", "--pid", "--fork", "--kill-child=SIGTERM")
    daemon = subprocess.Popen(
        [*apart, jobs.program, "serve", "--listen", "127.0.0.1:0"],
        env=jobs.environment,
        stderr=(tmp_path / "serve.log").open("w"),
    )
    try:
        until("the server listens", 30, lambda: jobs("status").code == 0)
        job = subprocess.Popen([sys.executable, "-c", KILLED], env=jobs.environment)

        assert job.wait(timeout=30) == -signal.SIGKILL

        def run() -> dict[str, object]:
            result = jobs("show", "latest", "--json")
            return dict(result.json()) if result.code == 0 else {}

        until("the run has ended", 30, lambda: run().get("state") == "RUN_STATE_KILLED")
        assert run()["pid"] == job.pid
        assert int(str(run()["records"])) > 0
    finally:
        daemon.kill()
        daemon.wait(timeout=30)


def test_run_exits_with_the_jobs_own_code_and_says_it_never_attached(
    jobs: Reprise, server: subprocess.Popen[str]
) -> None:
    result = jobs("run", "--", *JOB, "quit", "42")

    assert result.code == 42
    assert "never attached" in result.err
    assert "reprise.auto(model)" in result.err
    # What a process did without attaching is not known here.
    assert "no PyTorch model was trained" not in result.err


@pytest.mark.parametrize("dashes", [[], ["--"]])
def test_run_takes_the_first_word_that_is_no_flag_as_the_job(
    reprise: Reprise, server: subprocess.Popen[str], dashes: list[str]
) -> None:
    job = ["sh", "-c", 'echo "$@"', "sh", "--name", "y", "--", "z"]

    result = reprise("run", "--name", "x", "--budget=0.5x", *dashes, *job)

    assert (result.code, result.out) == (0, "--name y -- z\n"), result


def test_run_names_the_switch_that_keeps_a_job_from_attaching(
    jobs: Reprise, server: subprocess.Popen[str]
) -> None:
    jobs.environment["REPRISE_DISABLE"] = "1"

    result = jobs("run", "--", *JOB, "quit", "0")

    assert "the job never attached: REPRISE_DISABLE=1" in result.err


def test_run_starts_a_private_daemon_that_ends_by_itself(jobs: Reprise) -> None:
    result = jobs("run", "--", *JOB, "plain", "5")

    assert result.code == 0, result
    assert "ended after 5 steps without a plan" in result.err


def test_what_a_run_prints_works_after_its_end(jobs: Reprise) -> None:
    jobs.environment["REPRISE_LINGER"] = "600"
    ran = jobs("run", "--", *JOB, "plain", "5")
    page = re.findall(r"http://127\.0\.0\.1:\d+/runs/\S+", ran.err)[0]
    time.sleep(3)  # longer than a daemon stays that is told to stay for two seconds

    # As a browser that has opened the link which `reprise status` prints.
    token = json.loads(_server_file(jobs).read_text())["token_file"]
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
    page += f"?token={Path(token).read_text().strip()}"
    with browser.open(page, timeout=30) as answer:
        assert (answer.status, "token" in answer.url) == (200, False)
    assert "finished  5 steps" in jobs("show", "latest").out
    _end_private_daemon(jobs)
    said = jobs.fails(4, "status")
    assert "reprise show latest" in said
    # What the store has is said without a server, and is read again below.
    assert re.search(
        r"what was recorded until \d{4}-\d\d-\d\d \S+ is in .+ \([\d.]+ [KM]iB\)", said
    )
    assert "finished  5 steps" in jobs("show", "latest").out
    _end_private_daemon(jobs)


def test_a_private_daemon_that_starts_again_keeps_its_address(jobs: Reprise) -> None:
    jobs.environment["REPRISE_LINGER"] = "600"
    assert jobs("run", "--", *JOB, "plain", "5").code == 0
    url = json.loads(_server_file(jobs).read_text())["url"]
    _end_private_daemon(jobs)

    assert "finished  5 steps" in jobs("show", "latest").out
    assert json.loads(_server_file(jobs).read_text())["url"] == url
    _end_private_daemon(jobs)

    # A stranger has its port: it takes another, and nothing is sent there.
    with socket.socket() as stranger:
        stranger.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        stranger.bind(("127.0.0.1", int(url.rpartition(":")[2])))
        stranger.listen()
        stranger.settimeout(0.1)
        assert "finished  5 steps" in jobs("show", "latest").out
        assert json.loads(_server_file(jobs).read_text())["url"] != url
        with pytest.raises(TimeoutError):
            stranger.accept()
    _end_private_daemon(jobs)


def test_a_server_takes_the_place_of_an_idle_private_daemon(jobs: Reprise) -> None:
    jobs.environment["REPRISE_LINGER"] = "600"
    assert jobs("run", "--", *JOB, "plain", "5").code == 0
    idle = _private_daemon(jobs)
    server = subprocess.Popen(
        [jobs.program, "serve", "--listen", "127.0.0.1:0"], env=jobs.environment, cwd=jobs.folder
    )

    until("the server has the lock", 30, lambda: _private_daemon(jobs) == server.pid)

    until("the private daemon has ended", 30, lambda: not Path(f"/proc/{idle}/exe").exists())
    assert "finished  5 steps" in jobs("show", "latest").out
    server.terminate()
    assert server.wait(timeout=30) == 0


@pytest.fixture
def idle(jobs: Reprise) -> int:
    """The process id of a private daemon whose job has ended."""
    jobs.environment["REPRISE_LINGER"] = "600"
    assert jobs("run", "--", *JOB, "plain", "5").code == 0
    yield _private_daemon(jobs)
    _end_private_daemon(jobs)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--listen nonsense", "--listen"),
        ("--listen 0.0.0.0:0", "needs --tls-cert"),
        ("--http-listen 127.0.0.1", "--http-listen"),
        ("--grpc-listen 127.0.0.1:0 --http-listen :x", "--http-listen"),
        ("--listen 127.0.0.1:0 --token-file none", "none"),
        ("--listen 127.0.0.1:0 --tls-cert none --tls-key none", "none"),
        (
            "--forward-to 127.0.0.1:1 --forward-token-file none --listen 127.0.0.1:0",
            "none",
        ),
        ("--listen 127.0.0.1:TAKEN", "the port is in use"),
    ],
)
def test_a_mistyped_serve_leaves_the_private_daemon(
    jobs: Reprise, idle: int, flags: str, said: str
) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        flags = flags.replace("TAKEN", str(other.getsockname()[1]))

        served = jobs("serve", *flags.split())

    assert served.code == 1, served
    assert served.err.startswith("reprised: ")
    assert said in served.err
    assert _private_daemon(jobs) == idle
    assert jobs("status", "--json").json()["version"] == VERSION


def test_a_server_takes_the_port_of_the_private_daemon_whose_place_it_takes(
    jobs: Reprise, idle: int
) -> None:
    url = json.loads(_server_file(jobs).read_text())["url"]

    server = subprocess.Popen(
        [jobs.program, "serve", "--listen", url.removeprefix("http://")],
        env=jobs.environment,
        cwd=jobs.folder,
    )

    until("the server has the lock", 30, lambda: _private_daemon(jobs) == server.pid)
    until("it answers", 30, _server_file(jobs).exists)
    assert json.loads(_server_file(jobs).read_text())["url"] == url


def _server_file(jobs: Reprise) -> Path:
    return Path(jobs.environment["XDG_RUNTIME_DIR"]) / "server.json"


def _private_daemon(jobs: Reprise) -> int:
    """The process id of the daemon that has the runtime folder."""
    lock = Path(jobs.environment["XDG_RUNTIME_DIR"]) / "reprised.lock"
    return int(lock.read_text().split()[0])


def _end_private_daemon(jobs: Reprise) -> None:
    pid = _private_daemon(jobs)
    os.kill(pid, signal.SIGTERM)
    until("the daemon has ended", 30, lambda: not Path(f"/proc/{pid}/exe").exists())


@pytest.mark.long
def test_a_program_that_ends_long_after_its_training_still_hears_how_it_went(
    jobs: Reprise,
) -> None:
    # Longer than a private daemon waits for the next job.
    result = jobs("run", "--", "sh", "-c", '"$@"; sleep 4', "sh", *JOB, "plain", "5")

    assert result.code == 0, result
    assert "ended after 5 steps without a plan" in result.err


def test_run_ends_a_private_daemon_no_job_came_to(jobs: Reprise) -> None:
    result = jobs("run", "--", "true")

    assert result.code == 0
    assert "never attached" in result.err
    assert not (Path(jobs.environment["XDG_RUNTIME_DIR"]) / "server.json").exists()


def test_run_says_how_a_planned_job_went(jobs: Reprise, server: subprocess.Popen[str]) -> None:
    result = jobs("run", "--budget", "1330", "--", *JOB, "planned")

    assert result.code == 0, result
    assert result.out == "", "standard output is the job's"
    sentence = result.err.splitlines()[1]
    assert sentence.startswith("It fits in 1.3 KiB.  Peak 1.3 KiB (was 1.3 KiB)   Step 101 ns")
    assert "gradients bit for bit equal in 1 check. 2 steps ran without the plan" in sentence

    run_id = result.err.split()[1]
    for name in (run_id, run_id[:30], "latest"):
        assert jobs("show", name, "--json").json()["run_id"] == run_id
    verdict = jobs("show", run_id, "--json").json()["verdict"]
    added = int(verdict["predicted_step_ns"]) / int(verdict["base_step_ns"]) - 1
    assert f" ({added * 100:+.1f} %)   proven optimal" in sentence
    shown = jobs("show", run_id)
    assert shown.out.splitlines()[1] == sentence
    assert "validated" in shown.out
    assert "AT THE PEAK" in shown.out
    run = jobs("show", run_id, "--json").json()
    assert run["verdict"]["validated"] is True
    assert run["verdict"]["measured_peak_bytes"] == 1324

    # Its plan and its graph have ids of their own.
    plan = jobs("show", run["plan_id"], "--json").json()
    assert plan["plan"]["budget_bytes"] == 1330
    again = jobs("plan", run["graph_id"], "--budget", "1330", "--json").json()
    assert again["schedule"]
    assert jobs("sweep", run["graph_id"], "--points", "3").code == 0


def test_run_says_when_nothing_fits(jobs: Reprise, server: subprocess.Popen[str]) -> None:
    result = jobs("run", "--budget", "1300", "--", *JOB, "planned")

    assert result.code == 0, result
    assert "Nothing fits in" in result.err
    assert result.out == "", "standard output is the job's"


def test_with_json_the_run_follows_what_the_job_has_printed(
    jobs: Reprise, server: subprocess.Popen[str]
) -> None:
    result = jobs("run", "--json", "--", "sh", "-c", 'echo {}; exec "$@"', "sh", *JOB, "plain", "5")

    printed, run = map(json.loads, result.out.splitlines())
    assert printed == {}
    assert run["steps"] == 5
    assert result.err == ""


def test_run_and_show_say_how_steps_differ_that_left_the_plan(
    jobs: Reprise, server: subprocess.Popen[str]
) -> None:
    result = jobs("run", "--budget", "1330", "--", *JOB, "leaves")

    assert result.code == 0, result
    why = "The program left the plan 1 time and kept everything then: op 1 is aten.sin.default, "
    assert why + "captured was aten.cos. " in result.err
    run = jobs("show", "latest", "--json").json()
    assert why in run["verdict"]["sentence"]
    assert run["verdict"]["left"].startswith("op 1 is aten.sin.default")
    assert run["verdict"]["validated"] is False


def test_signals_reach_the_job_and_its_code_comes_back(
    jobs: Reprise, server: subprocess.Popen[str]
) -> None:
    process = subprocess.Popen(
        [jobs.program, "run", "--", *JOB, "sleep"],
        env=jobs.environment,
        cwd=jobs.folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"

    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)

    assert process.returncode == 7


def test_a_killed_job_exits_as_in_a_shell(jobs: Reprise, server: subprocess.Popen[str]) -> None:
    result = jobs("run", "--", "sh", "-c", "kill -KILL $$")

    assert result.code == 128 + signal.SIGKILL


def test_run_says_what_cannot_be_started(jobs: Reprise, server: subprocess.Popen[str]) -> None:
    here = Path(__file__)
    for program, code in (("./no-such-program", 127), ("no-such-program", 127), (str(here), 126)):
        result = jobs("run", "--", program)

        # As a shell does, and without a page for a run that never was.
        assert result.code == code
        assert f"{program}: cannot be started: " in result.err
        assert "/runs/" not in result.err


def test_run_checks_the_budget_before_anything_starts(reprise: Reprise) -> None:
    assert "8GiB" in reprise.fails(2, "run", "--budget", "8G", "--", "true")


def test_run_checks_the_server_before_anything_starts(reprise: Reprise) -> None:
    said = reprise.fails(2, "run", "--server", "elsewhere", "--", "touch", "started")

    assert "elsewhere" in said
    assert not (reprise.folder / "started").exists()


LONG = "/tmp/" + "x" * 200
HIDDEN = {"HOME": "", "XDG_STATE_HOME": "", "REPRISE_DATA_DIR": ""}


@pytest.mark.parametrize(
    ("surroundings", "reason"),
    [
        ({"REPRISE_SOCKET": "/proc/none/agent.sock"}, "/proc/none: cannot be made"),
        ({"REPRISE_SOCKET": f"{LONG}/agent.sock"}, "too long for a socket"),
        ({"REPRISE_DAEMON": "/no/such/program"}, "/no/such/program: is not a program"),
        ({"REPRISE_DATA_DIR": "/proc/none"}, "/proc/none"),
        (HIDDEN, "HOME"),
        ({"REPRISE_SERVER": "127.0.0.1:1"}, "127.0.0.1:1"),
    ],
    ids=["runtime folder", "long folder", "no daemon", "state folder", "no home", "no server"],
)
def test_a_job_runs_as_it_is_where_nobody_can_watch_it(
    jobs: Reprise, surroundings: dict[str, str], reason: str
) -> None:
    surroundings = {"XDG_RUNTIME_DIR": jobs.environment["XDG_RUNTIME_DIR"], **surroundings}
    script = """
import json, os, sys
print(json.dumps(dict(os.environ)))
sys.exit(9)
"""

    result = jobs("run", "--budget", "0.5x", "--", sys.executable, "-c", script, **surroundings)

    assert result.code == 9, result
    (line,) = result.err.splitlines()
    assert line.startswith("reprise: the job runs without Reprise: ")
    assert reason in line
    ours = {"REPRISE_BUDGET": "0.5x"}
    assert json.loads(result.out) == jobs.environment | surroundings | ours
    assert not os.path.exists(LONG)


def test_a_job_runs_where_the_state_folder_has_a_daemon_of_another_runtime_folder(
    jobs: Reprise, server: subprocess.Popen[str], tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir(mode=0o700)

    result = jobs("run", "--", *JOB, "quit", "3", REPRISE_SOCKET=str(other / "agent.sock"))

    assert result.code == 3, result
    (line,) = result.err.splitlines()
    assert line.startswith("reprise: the job runs without Reprise: ")
    assert "another reprised" in line


def test_what_a_killed_daemon_said_of_its_server_is_gone_before_the_next_one_is_up(
    jobs: Reprise,
) -> None:
    said = Path(jobs.environment["XDG_RUNTIME_DIR"]) / "server.json"
    first = jobs("run", "--", *JOB, "plain", "5")
    killed = json.loads(said.read_text())
    os.kill(killed["pid"], signal.SIGKILL)
    until("the daemon has ended", 10, lambda: not os.path.exists(f"/proc/{killed['pid']}/exe"))
    taken = socket.create_server(("127.0.0.1", 0))

    # One that comes as far as its ports, and no further.
    refused = jobs("serve", "--listen", f"127.0.0.1:{taken.getsockname()[1]}")
    stayed = said.exists()
    taken.close()
    second = jobs("run", "--", *JOB, "plain", "5")

    assert (first.code, refused.code, second.code) == (0, 1, 0)
    assert not stayed
    assert "without Reprise" not in first.err + second.err
    assert "5 steps without a plan" in second.err


def test_a_job_that_begins_as_the_daemon_before_it_ends_gets_one_of_its_own(
    jobs: Reprise,
) -> None:
    """The socket of the one before answers once more; its server is gone already."""
    folder = Path(jobs.environment["XDG_RUNTIME_DIR"])
    closed = socket.create_server(("127.0.0.1", 0))
    port = closed.getsockname()[1]
    closed.close()
    (folder / "server.json").write_text(json.dumps({"listen": f"127.0.0.1:{port}", "url": ""}))
    ending = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ending.bind(str(folder / "agent.sock"))
    ending.listen()

    def end() -> None:
        ending.accept()[0].close()
        ending.close()

    thread = threading.Thread(target=end)
    thread.start()
    result = jobs("run", "--", *JOB, "plain", "5")
    thread.join()

    assert result.code == 0, result
    assert "without Reprise" not in result.err
    assert "5 steps without a plan" in result.err
