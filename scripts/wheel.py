# SPDX-License-Identifier: Apache-2.0
"""Packs a build into one wheel; scripts/wheel runs this where its tools are.

The package is staged with the programs inside it, packed as a wheel of this platform, and
repaired by auditwheel: each shared library that is not of the manylinux policy is copied into
`reprise.libs/` and found there by a search path relative to the file that needs it. Then the
licences of what was copied are added, taken from the distribution's own packages.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CLIENT = ROOT / "clients/python"
MOST_BYTES = 40_000_000
# Headers whose code is compiled in, by the package that has them; the first that is installed.
HEADERS = (
    ("libboost1.83-dev", "libboost1.81-dev"),
    ("libcli11-dev",),
    ("nlohmann-json3-dev",),
)
# What a prebuilt part needs is there once torch is imported.
TORCHS = ("libc10.so", "libtorch_cpu.so", "libtorch_python.so", "libtorch.so")
SCRIPTS = ("svelte", "uplot", "@bufbuild/protobuf", "@connectrpc/connect")


class WheelError(Exception):
    """One sentence: what is missing or wrong."""


def say(text: str) -> None:
    print(f"wheel: {text}", file=sys.stderr, flush=True)


def run(*command: str | Path, cwd: Path | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).strip().splitlines()[-20:]
        print("\n".join(lines), file=sys.stderr)
        raise WheelError(f"{Path(command[0]).name} failed: see the lines above")
    return done.stdout


# ---- staging ----


def prebuild(package: Path, pythons: list[Path]) -> None:
    """The parts that are compiled against torch, for the torch of each interpreter."""
    into = package / "torch/compiled/prebuilt"
    into.mkdir()
    for python in pythons:
        for part in ("compiled.fast", "meter.probe"):
            module = f"reprise.torch.{part}"
            environment = {**os.environ, "PYTHONPATH": str(package.parent), "REPRISE_DISABLE": "1"}
            done = subprocess.run([python, "-m", module, "build", "--into", into],
                                  capture_output=True, text=True, env=environment)  # fmt: skip
            if done.returncode != 0:
                raise WheelError(f"{python}: {done.stderr.strip().splitlines()[-1]}")
    for lock in into.glob("*.lock"):
        lock.unlink()
    for library in into.glob("*.so"):
        run("strip", "--strip-unneeded", library)
        library.chmod(0o755)
        say(f"prebuilt: {library.name}, {library.stat().st_size / 1e6:.1f} MB")


def stage(build: Path, folder: Path, pythons: list[Path]) -> None:
    """The Python project with the programs inside the package."""
    ignore = shutil.ignore_patterns("__pycache__", "*.pyc", "*.egg-info", "*.so")
    shutil.copytree(CLIENT, folder, ignore=ignore)
    package = folder / "src/reprise"
    (package / "bin").mkdir()
    for name in ("reprise", "reprised"):
        shutil.copy2(build / "bin" / name, package / "bin" / name)
    shutil.copy2(build / "lib/libreprise_agent.so", package)
    for program in (*package.glob("bin/*"), package / "libreprise_agent.so"):
        run("strip", "--strip-unneeded", program)
        program.chmod(0o755)
    (package / "examples").mkdir()
    for example in (ROOT / "examples").glob("train_*.py"):
        shutil.copy2(example, package / "examples")
    for text in ("LICENSE", "NOTICE"):
        shutil.copy2(ROOT / text, folder)
    prebuild(package, pythons)


def pack(folder: Path, out: Path) -> Path:
    """A wheel of this platform, for every Python 3."""
    python = sys.executable
    run(python, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", ".", "-w", out,
        cwd=folder)  # fmt: skip
    (pure,) = out.glob("*.whl")
    tree = unpack(pure, out)
    wheel = next(tree.glob("*.dist-info/WHEEL"))
    machine = f"linux_{os.uname().machine}"
    text = wheel.read_text().replace("Root-Is-Purelib: true", "Root-Is-Purelib: false")
    wheel.write_text(text.replace("Tag: py3-none-any", f"Tag: py3-none-{machine}"))
    pure.unlink()
    return repack(tree, out)


def unpack(wheel: Path, out: Path) -> Path:
    run(sys.executable, "-m", "wheel", "unpack", wheel, "-d", out)
    (tree,) = (path for path in out.iterdir() if path.is_dir())
    return tree


def repack(tree: Path, out: Path) -> Path:
    run(sys.executable, "-m", "wheel", "pack", tree, "-d", out)
    shutil.rmtree(tree)
    (wheel,) = out.glob("*.whl")
    return wheel


# ---- licences of what is bundled ----


def needed(program: Path) -> dict[str, Path]:
    """Every library that the loader finds for it: name and file."""
    lines = run("ldd", program).splitlines()
    found = (re.match(r"\s*(\S+) => (/\S+)", line) for line in lines)
    return {match[1]: Path(match[2]) for match in found if match}


def original(name: str) -> str:
    """auditwheel calls libz.so.1 libz-0123abcd.so.1."""
    return re.sub(r"-[0-9a-f]{8}(?=\.so)", "", name)


def package_of(library: Path) -> str:
    for path in (library, library.resolve(), Path("/usr") / library.relative_to("/")):
        done = subprocess.run(["dpkg", "-S", path], capture_output=True, text=True)
        if done.returncode == 0:
            return done.stdout.split(":")[0]
    raise WheelError(f"{library}: no package of the distribution has it; its licence is not known")


def add_licences(tree: Path, build: Path) -> list[str]:
    """Writes licenses/third_party; returns the names of the bundled libraries."""
    known = {**needed(build / "bin/reprise"), **needed(build / "bin/reprised")}
    bundled = sorted(original(path.name) for path in (tree / "reprise.libs").iterdir())
    by_file = {path.resolve().name: path for path in known.values()} | known
    packages = {package_of(by_file[name]) for name in bundled}
    for choices in HEADERS:
        installed = [name for name in choices if Path(f"/usr/share/doc/{name}/copyright").exists()]
        if not installed:
            raise WheelError(f"{' or '.join(choices)}: not installed, so its licence is not known")
        packages.add(installed[0])
    folder = next(tree.glob("*.dist-info")) / "licenses/third_party"
    folder.mkdir(parents=True)
    rows = []
    for name in sorted(packages):
        shutil.copy(f"/usr/share/doc/{name}/copyright", folder / f"{name}.txt")
        form = "${source:Package} ${source:Version}"
        rows.append(f"{name}: source {run('dpkg-query', '-W', '-f', form, name)}")
    for name in SCRIPTS:
        file = next((ROOT / "web/node_modules" / name).glob("LICENSE*"), None)
        if file is not None:
            shutil.copy(file, folder / f"npm-{name.replace('/', '-').lstrip('@')}.txt")
    (folder / "README.txt").write_text(
        "What this wheel bundles, by package of the Debian archive it was taken from, with the\n"
        "package's own statement of its licence beside this file.\n\n" + "\n".join(rows) + "\n"
    )
    return bundled


# ---- the whole ----


def build_wheel(build: Path, out: Path, pythons: list[Path]) -> Path:
    with tempfile.TemporaryDirectory(prefix="reprise-wheel-") as temporary:
        work = Path(temporary)
        say("packing")
        stage(build, work / "stage", pythons)
        (work / "plain").mkdir()
        plain = pack(work / "stage", work / "plain")
        say("bundling libraries")
        (work / "repaired").mkdir()
        excluded = [word for name in TORCHS for word in ("--exclude", name)]
        run("auditwheel", "repair", *excluded, plain, "-w", work / "repaired")
        (repaired,) = (work / "repaired").glob("*.whl")
        name = repaired.name
        tree = unpack(repaired, work / "repaired")
        repaired.unlink()
        bundled = add_licences(tree, build)
        say(f"{len(bundled)} libraries bundled")
        done = repack(tree, work / "repaired")
        if done.name != name:
            raise WheelError(f"the tag changed from {name} to {done.name}")
        out.mkdir(exist_ok=True)
        for older in out.glob("reprise-*.whl"):
            older.unlink()
        return Path(shutil.move(done, out / name))


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/wheel")
    parser.add_argument("--build", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--prebuild", type=Path, action="append", default=[])
    options = parser.parse_args()
    try:
        wheel = build_wheel(options.build.resolve(), options.out.resolve(), options.prebuild)
        say(run("auditwheel", "show", wheel).split("\n\n")[0].strip())
        size = wheel.stat().st_size
        if size > MOST_BYTES:
            raise WheelError(f"{wheel.name}: {size} bytes, more than {MOST_BYTES}")
    except WheelError as error:
        print(f"wheel: {error}", file=sys.stderr)
        return 1
    say(f"{size / 1e6:.1f} MB")
    print(wheel)
    return 0


if __name__ == "__main__":
    sys.exit(main())
