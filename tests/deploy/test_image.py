"""The daemon in the image's root file system: read-only, as a user without rights, on its own."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
USER = 10001
NAMESPACES = ("unshare", "--pid", "--net", "--ipc", "--uts", "--fork", "--kill-child")

# What a container engine does before it starts the program: mounts, and the loopback interface.
PREPARE = """
set -e
mount --make-rprivate /
mount --bind "$1" "$1"
mount --bind "$2" "$1/run/reprise"
mount --bind "$3" "$1/var/lib/reprise"
mount -t proc proc "$1/proc"
mount -t tmpfs tmpfs "$1/tmp"
mount -o remount,bind,ro "$1"
ip link set lo up
exec chroot --userspec=10001:10001 "$1" /opt/reprise/bin/reprised \
  --agent-socket /run/reprise/agent.sock --data-dir /var/lib/reprise
"""


@dataclass(frozen=True)
class Image:
    root: Path
    run: Path
    process: subprocess.Popen[str]

    def daemon(self) -> int:
        """The daemon's process, as this machine numbers it."""
        return children(self.process)[0]

    def inside(self, *command: str) -> subprocess.CompletedProcess[str]:
        """As the engine runs a health check: in the daemon's namespaces, as its user."""
        enter = ["nsenter", f"--target={self.daemon()}", "--mount", "--pid", "--net"]
        become = ["chroot", f"--userspec={USER}:{USER}", str(self.root)]
        return subprocess.run(
            [*enter, *become, *command],
            capture_output=True,
            text=True,
            timeout=60,
            env={
                "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
                "REPRISE_SOCKET": "/run/reprise/agent.sock",
            },
        )


def children(process: subprocess.Popen[str]) -> list[int]:
    text = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
    return [int(word) for word in text.split()]


def make_image(folder: Path) -> Path:
    subprocess.run([ROOT / "docker/rootfs", ROOT / "build", folder], check=True)
    return folder


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    if os.geteuid() != 0:
        pytest.exit("namespaces and chroot need root; run scripts/test image as root", returncode=2)
    # pytest keeps the folders above from other users.
    folder = Path(subprocess.check_output(["mktemp", "-d", "/tmp/rpXXXXXX"], text=True).strip())
    folder.chmod(0o755)
    root = make_image(folder / "root")
    for name in ("run", "var"):
        (folder / name).mkdir()
        # Others may enter: what keeps them out is the mode of each file.
        (folder / name).chmod(0o755)
        os.chown(folder / name, USER, USER)
    process = subprocess.Popen(
        [*NAMESPACES, "--mount", "sh", "-c", PREPARE, "sh", root, folder / "run", folder / "var"],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        deadline = time.monotonic() + 60
        while not (folder / "run/server.json").exists():
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline, "the daemon did not say where it is"
            time.sleep(0.05)
        yield Image(root, folder / "run", process)
    finally:
        # The first process of its namespace: the others there end with it. Changing its user made
        # it forget that it was to end with unshare.
        for child in children(process):
            os.kill(child, signal.SIGKILL)
        process.communicate()
        subprocess.run(["rm", "-rf", folder], check=True)


def train(image: Image, home: Path) -> subprocess.CompletedProcess[str]:
    """A job of root, as in most containers, that shares only the folder of the socket."""
    return subprocess.run(
        [*NAMESPACES, os.environ["REPRISE_PYTHON"], Path(__file__).with_name("job.py")],
        env={
            "PATH": "/usr/bin:/bin",
            "HOME": str(home),
            "PYTHONPATH": str(ROOT / "clients/python/src"),
            "REPRISE_AGENT": str(image.root / "opt/reprise/lib/libreprise_agent.so"),
            "REPRISE_SOCKET": str(image.run / "agent.sock"),
            # None is to be started in its place.
            "REPRISE_DAEMON": "/bin/false",
            "OMP_NUM_THREADS": "1",
        },
        cwd=home,
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_the_image_has_at_most_120_megabytes_and_no_shell(image: Image) -> None:
    files = [path for path in image.root.rglob("*") if path.is_file() and not path.is_symlink()]
    outside = [path for path in files if "proc" not in path.relative_to(image.root).parts[:1]]

    assert sum(path.stat().st_size for path in outside) <= 120_000_000
    assert not [path for path in outside if path.name in {"sh", "bash", "busybox", "apt"}]


def test_the_health_check_of_the_image_passes(image: Image) -> None:
    done = image.inside("/opt/reprise/bin/reprise", "status", "--quiet")

    assert done.returncode == 0, done.stderr


def test_the_daemon_has_no_rights_and_a_root_that_it_cannot_write(image: Image) -> None:
    status = Path(f"/proc/{image.daemon()}/status").read_text()
    mounts = Path(f"/proc/{image.daemon()}/mountinfo").read_text().splitlines()
    root = [line for line in mounts if f" {image.root} " in line or line.split()[4] == "/"]

    assert f"Uid:\t{USER}\t{USER}\t{USER}\t{USER}" in status
    assert "CapEff:\t0000000000000000" in status
    assert any(line.split()[5].startswith("ro") for line in root), root


def test_a_job_in_another_container_is_planned(image: Image, tmp_path: Path) -> None:
    done = train(image, tmp_path)

    assert done.returncode == 0, done.stderr
    assert done.stdout == "training under a plan True\n", done.stderr


OTHER = """
import socket, sys
if sys.argv[1] == "connect":
    socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET).connect(sys.argv[2])
else:
    open(sys.argv[2], "rb").read()
"""


@pytest.mark.parametrize(
    ("does", "file"),
    [
        ("connect", "run/agent.sock"),
        ("read", "var/token"),
        ("read", "var/reprise.db"),
    ],
)
def test_another_user_can_neither_reach_the_socket_nor_read_what_is_stored(
    image: Image, does: str, file: str
) -> None:
    path = image.run.parent / file
    assert path.exists()
    # The folder is open, so that the file's own mode is what is tested.
    assert path.parent.stat().st_mode & 0o005 == 0o005
    who = {"user": USER + 1, "group": USER + 1, "extra_groups": []}

    done = subprocess.run(
        ["/usr/bin/python3", "-c", OTHER, does, path],
        **who,  # type: ignore[call-overload]
        capture_output=True,
        text=True,
        cwd="/",
    )

    assert "PermissionError" in done.stderr, done.stderr or "no error"


def test_another_user_cannot_enter_the_folders_that_an_engine_copies_into_volumes(
    image: Image,
) -> None:
    for name in ("run/reprise", "var/lib/reprise"):
        about = (image.root / name).stat()

        assert (about.st_mode & 0o777, about.st_uid) == (0o700, USER)
