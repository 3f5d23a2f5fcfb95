# SPDX-License-Identifier: Apache-2.0
"""Finding the daemon, and starting a private one."""

import fcntl
import json
import os
import shutil
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from reprise.agent import daemon
from reprise.base.errors import RepriseError


@pytest.fixture(autouse=True)
def no_system_daemon(home, monkeypatch):
    """Hides the system's daemon from every test."""
    monkeypatch.setattr(daemon, "SYSTEM_SOCKET", home / "system.sock")
    monkeypatch.setenv("REPRISE_DAEMON", "/nowhere/reprised")


def listen(path):
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(str(path))
    listener.listen()
    return listener


# ---- Finding ----------------------------------------------------------------


def test_the_named_socket_wins_over_the_others(home, monkeypatch):
    monkeypatch.setenv("REPRISE_SOCKET", str(home / "named.sock"))

    with listen(home / "named.sock"), listen(home / "system.sock"):
        assert daemon.find() == home / "named.sock"


def test_the_systems_socket_wins_over_the_users(home):
    daemon.runtime_dir()

    with listen(home / "system.sock"), listen(home / "run" / "reprise" / "agent.sock"):
        assert daemon.find() == home / "system.sock"


def test_after_a_dead_system_socket_the_users_socket_is_tried(home):
    listen(home / "system.sock").close()
    daemon.runtime_dir()

    with listen(home / "run" / "reprise" / "agent.sock") as _:
        assert daemon.find() == home / "run" / "reprise" / "agent.sock"


def test_nothing_is_found_where_nothing_listens():
    assert daemon.find() is None


# ---- The runtime folder -----------------------------------------------------


def test_the_runtime_folder_is_made_for_this_user_alone(home):
    folder = daemon.runtime_dir()

    assert folder == home / "run" / "reprise"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_without_a_runtime_folder_of_the_session_it_lies_in_the_temporary_one(home, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(home / "missing"))
    monkeypatch.setenv("TMPDIR", str(home))

    assert daemon.runtime_dir() == home / f"reprise-{os.getuid()}"


def test_a_runtime_folder_open_to_others_is_closed(home):
    (home / "run" / "reprise").mkdir()
    (home / "run" / "reprise").chmod(0o777)

    assert stat.S_IMODE(daemon.runtime_dir().stat().st_mode) == 0o700


def test_a_link_in_place_of_the_runtime_folder_is_refused(home):
    (home / "elsewhere").mkdir()
    (home / "run" / "reprise").symlink_to(home / "elsewhere")

    with pytest.raises(RepriseError, match="is not a folder"):
        daemon.runtime_dir()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
def test_a_runtime_folder_of_somebody_else_is_refused(home):
    (home / "run" / "reprise").mkdir()
    os.chown(home / "run" / "reprise", 12345, 12345)

    with pytest.raises(RepriseError, match="belongs to user 12345, not to this one"):
        daemon.runtime_dir()


SOCKETS = json.loads((Path(__file__).parents[2] / "fixtures/socket_paths.json").read_text())["rows"]


@pytest.mark.parametrize("row", SOCKETS, ids=lambda row: row["name"])
def test_a_daemon_of_this_user_listens_where_agent_and_command_look(home, monkeypatch, row):
    (home / "file").touch()
    (home / "theirs").mkdir()
    if os.getuid() == 0:
        os.chown(home / "theirs", 12345, 12345)
    else:
        (home / "theirs").chmod(0o500)
    filled = {"home": str(home), "uid": str(os.geteuid())}
    for name in ("XDG_RUNTIME_DIR", "TMPDIR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in row["env"].items():
        monkeypatch.setenv(name, value.format(**filled))

    assert str(daemon._own_socket()) == row["own"].format(**filled)


# ---- Starting ---------------------------------------------------------------


def test_a_daemon_that_answers_is_used_and_none_is_started(home):
    daemon.runtime_dir()

    with listen(home / "run" / "reprise" / "agent.sock"):
        found = daemon.ensure()

    assert (found.socket, found.started) == (home / "run" / "reprise" / "agent.sock", False)


def test_a_missing_daemon_is_a_sentence_and_no_error():
    found = daemon.ensure()

    assert found.socket is None
    assert found.why == "REPRISE_DAEMON=/nowhere/reprised: is not a program"


def test_a_daemon_that_ends_at_once_is_quoted(home, monkeypatch):
    program = home / "reprised"
    program.write_text("#!/bin/sh\necho starting >&2\necho the state folder is full >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("REPRISE_DAEMON", str(program))

    found = daemon.ensure()

    assert found.why == f"{program} ended with code 1: the state folder is full"


def test_a_daemon_that_never_listens_is_stopped_after_the_time_limit(home, monkeypatch):
    program = home / "reprised"
    program.write_text("#!/bin/sh\nexec sleep 600\n")
    program.chmod(0o755)
    monkeypatch.setenv("REPRISE_DAEMON", str(program))

    found = daemon.ensure(timeout_s=0.2)

    assert "did not listen on" in found.why
    assert daemon._children[-1].wait(timeout=30) == -15


def test_a_daemon_that_is_about_to_end_is_waited_for(home, monkeypatch, daemon_binary):
    """It has closed its socket but still holds the folder."""
    monkeypatch.setenv("REPRISE_DAEMON", str(daemon_binary))
    leaving = os.open(daemon.runtime_dir() / "reprised.lock", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(leaving, fcntl.LOCK_EX)
    start, refused = daemon._start, []

    def leaves_after_the_first_try(path, timeout_s, stay):
        try:
            start(path, timeout_s, stay)
        except RepriseError as error:
            refused.append(str(error))
            fcntl.flock(leaving, fcntl.LOCK_UN)
            raise

    monkeypatch.setattr(daemon, "_start", leaves_after_the_first_try)

    found = daemon.ensure()

    assert (found.started, found.why) == (True, "")
    assert len(refused) == 1
    assert "another reprised" in refused[0]
    daemon._children[-1].terminate()
    os.close(leaving)


def test_a_socket_in_a_missing_folder_is_refused_in_one_sentence(monkeypatch):
    monkeypatch.setenv("REPRISE_SOCKET", "/nowhere/agent.sock")

    assert daemon.ensure().why == "REPRISE_SOCKET=/nowhere/agent.sock: there is no folder /nowhere"


def test_a_lock_held_by_another_job_is_waited_for_and_then_named(home):
    with daemon._start_lock(daemon.runtime_dir(), timeout_s=1):
        found = daemon.ensure(timeout_s=0.1)

    assert found.why.startswith(f"{home}/run/reprise/start.lock: held by another job")


RANK = "from reprise.agent import daemon; c = daemon.ensure(); print(c.socket, c.started, c.why)"


def test_ranks_that_start_together_share_one_private_daemon(
    home, monkeypatch, daemon_binary, python, until
):
    # The daemon ends by itself only after a session; here none comes, so its pid is kept.
    wrapper = home / "reprised"
    wrapper.write_text(f'#!/bin/sh\necho $$ >> {home}/pids\nexec {daemon_binary} "$@"\n')
    wrapper.chmod(0o755)
    environment = {
        **os.environ,
        "REPRISE_DAEMON": str(wrapper),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }

    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK], env=environment, stdout=subprocess.PIPE, text=True
        )
        for _ in range(4)
    ]
    answers = sorted(rank.communicate(timeout=120)[0].strip() for rank in ranks)

    pids = (home / "pids").read_text().split()
    try:
        path = home / "run" / "reprise" / "agent.sock"
        assert answers == [f"{path} False"] * 3 + [f"{path} True"]
        assert len(pids) == 1
        # A Ctrl-C at the job's terminal goes to its process group, not to the daemon's.
        assert os.getpgid(int(pids[0])) == int(pids[0])
    finally:
        for pid in pids:
            os.kill(int(pid), 15)
        until(lambda: not any(os.path.exists(f"/proc/{pid}/exe") for pid in pids))


JOB = """
import os
from reprise.agent import daemon
from reprise.agent.agent import Agent
found = daemon.ensure()
agent = Agent.start(socket=found.socket)
agent.step(1)
agent.step_done(1, step_ns=1, peak_bytes=1)
print(found.started, agent.status != "inert", daemon._children[0].pid, flush=True)
if os.environ.get("KILLED"):
    os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("killed", ["", "1"])
def test_a_private_daemon_ends_by_itself_after_the_job(
    home, agent_library, daemon_binary, python, until, killed
):
    done = python(
        "-c",
        JOB,
        REPRISE_AGENT=str(agent_library),
        REPRISE_DAEMON=str(daemon_binary),
        KILLED=killed,
    )

    started, connected, pid = done.stdout.split()
    assert (started, connected) == ("True", "True"), done.stderr
    assert done.returncode == (-9 if killed else 0)
    until(lambda: not os.path.exists(f"/proc/{pid}/exe"))
    until(lambda: not (home / "run" / "reprise" / "server.json").exists())


def test_the_binary_is_found_in_the_path(home, monkeypatch):
    monkeypatch.delenv("REPRISE_DAEMON")
    shutil.copy("/bin/true", home / "reprised")
    monkeypatch.setenv("PATH", str(home))

    assert daemon._binary() == home / "reprised"


def test_the_binary_is_found_beside_the_library_of_a_build(home, monkeypatch):
    monkeypatch.delenv("REPRISE_DAEMON")
    for folder in ("bin", "lib"):
        (home / folder).mkdir()
    shutil.copy("/bin/true", home / "bin" / "reprised")
    monkeypatch.setenv("REPRISE_AGENT", str(home / "lib" / "libreprise_agent.so"))
    monkeypatch.setenv("PATH", "/nowhere")

    assert daemon._binary() == home / "bin" / "reprised"
