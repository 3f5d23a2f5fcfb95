"""The Debian package: installed by dpkg over a copy of this machine, used and removed."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# Mounts an overlay over "/" so that dpkg writes to "$1", then runs the command in it.
IN_A_COPY = """
set -e
mount --make-rprivate /
mkdir -p "$1/upper" "$1/work" "$1/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$1/root"
mount -t proc proc "$1/root/proc"
mount -t tmpfs tmpfs "$1/root/run"
mount --bind /dev "$1/root/dev"
cp "$2" "$1/root/var/tmp/reprise.deb"
exec chroot "$1/root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TMPDIR=/run sh -ec "$3"
"""


@pytest.fixture(scope="module")
def package() -> Path:
    done = subprocess.run(
        [ROOT / "scripts/deb", "--no-build"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return ROOT / done.stdout.split()[-1]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder on a tmpfs: an overlay cannot lie on another overlay."""
    path = Path("/dev/shm/reprise-deb-test")
    subprocess.run(["rm", "-rf", path], check=True)
    path.mkdir()
    yield path
    subprocess.run(["rm", "-rf", path], check=True)


def in_a_copy(folder: Path, package: Path, script: str) -> str:
    """Runs a shell script as root in a copy of this machine that has the package's file at
    /var/tmp/reprise.deb. Returns its output."""
    done = subprocess.run(
        ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", IN_A_COPY, "sh",
         folder, package, script],
        capture_output=True,
        text=True,
        timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_an_installed_package_has_programs_pages_completions_and_a_python_module(
    package: Path, folder: Path
) -> None:
    out = in_a_copy(
        folder,
        package,
        """
        dpkg -i /var/tmp/reprise.deb >/dev/null
        reprise --version
        reprised --version
        man reprise-plan | grep -c -- --budget
        man reprised | grep -c -- --data-dir
        bash -n /usr/share/bash-completion/completions/reprise
        grep -c '^reprise:' /etc/passwd
        realpath "$(/usr/bin/python3 -c \
          'from reprise.agent import bundled; print(bundled.program("reprise"))')"
        echo '{"format": "reprise.graph/1", "name": "one", "source": "", "note": "",
          "static_bytes": 0, "required": [0], "storages": [{"id": 0, "bytes": 8}], "ops": [
          {"id": 0, "name": "f", "phase": "forward", "kind": "pure", "time_ns": 1,
           "workspace_bytes": 0, "reads": [], "writes": [0], "mutates": []}]}' > /run/t.json
        reprise plan /run/t.json --budget 1.0x -o /run/t.plan.json >/dev/null
        reprise verify /run/t.json /run/t.plan.json >/dev/null && echo verified
        """,
    ).split("\n")

    version = out[0].removeprefix("reprise ")
    assert out[1] == f"reprised {version}"
    assert int(out[2]) > 0
    assert int(out[3]) > 0
    assert out[4:7] == ["1", "/usr/bin/reprise", "verified"]


def test_a_removed_package_leaves_no_file(package: Path, folder: Path) -> None:
    out = in_a_copy(
        folder,
        package,
        """
        dpkg -i /var/tmp/reprise.deb >/dev/null
        dpkg -L reprise | while read -r path; do [ -d "$path" ] || echo "$path"; done >/run/files
        dpkg -r reprise >/dev/null
        while read -r path; do [ ! -e "$path" ] || echo "$path"; done </run/files
        wc -l </run/files
        """,
    )

    left, count = out.strip().split("\n")[:-1], int(out.strip().split("\n")[-1])
    assert left == []
    assert count > 100


def test_the_package_depends_on_what_its_programs_are_linked_with(package: Path) -> None:
    fields = subprocess.run(
        ["dpkg-deb", "--field", package, "Depends"], capture_output=True, text=True, check=True
    ).stdout

    assert all(name in fields for name in ("libc6", "libgrpc++", "libprotobuf", "libsqlite3"))
