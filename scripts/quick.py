# SPDX-License-Identifier: Apache-2.0
"""What `scripts/test quick` runs after an edit: the tests that mirror what was changed.

    scripts/test quick                 # what differs from the last commit
    scripts/test quick planner web     # these files and folders

tests/ has the folders of the product, so where a change is tested follows from its path. Linters
see the changed files alone, mypy all that import them. C++ tests are those labelled with the
changed component, which start no process; Python tests those without a label (tests/conftest.py).
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTHON = str(ROOT / ".venv/bin/python")
CLIENT = "clients/python/src/reprise/"
# Folders of the product -> labels of C++ tests, which are folders of tests/.
COMPONENTS = {
    "base": ("base",),
    "planner": ("planner",),
    "profiler": ("profiler", "collect"),
    "formats": ("formats",),
    "server": ("server", "collect"),
    "proto": ("formats", "server"),
    "clients/cli": ("cli",),
}


def git(*arguments: str) -> list[str]:
    done = subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True)
    return done.stdout.splitlines()


def changed(paths: Sequence[str]) -> list[str]:
    """The files below the paths; without any, those that differ from the last commit, or those of
    the last commit if none does."""
    if paths:
        known = git("ls-files", "--cached", "--others", "--exclude-standard", "--", *paths)
        if not known:
            sys.exit(f"test: quick: no file below {' '.join(paths)}")
    else:
        known = git("diff", "--name-only", "HEAD")
        known += git("ls-files", "--others", "--exclude-standard")
        known = known or git("diff", "--name-only", "HEAD~1")
    return sorted(file for file in set(known) if (ROOT / file).is_file())


def component(file: str) -> tuple[str, ...]:
    """The labels of the C++ tests that mirror a file."""
    for folder, labels in COMPONENTS.items():
        if file.startswith(f"{folder}/"):
            return labels
    own = file.split("/")[1] if file.startswith("tests/") else ""
    return (own,) if any(own in labels for labels in COMPONENTS.values()) else ()


def python_tests(file: str) -> str | None:
    """The folder or file of the Python tests that mirror a file."""
    if file.startswith(f"{CLIENT}torch/"):
        folder = file.removeprefix(f"{CLIENT}torch/").split("/")[0]
        found = f"tests/python/pytorch/{folder}"
    elif file.startswith(tuple(f"{CLIENT}{folder}/" for folder in ("agent", "base", "plan"))):
        found = f"tests/python/{file.removeprefix(CLIENT).split('/')[0]}"
    elif file.startswith(CLIENT) and file.count("/") == CLIENT.count("/"):
        found = f"tests/python/test_{Path(file).stem}.py"
    elif file.startswith("tests/python/") and Path(file).name.startswith("test_"):
        found = file
    elif file.startswith("tests/python/pytorch/"):
        found = "tests/python/pytorch/policy"
    else:
        return None
    return found if (ROOT / found).exists() else None


def run(*command: str, folder: str = ".") -> None:
    """Runs a command, and ends with its code if it fails."""
    done = subprocess.run(command, cwd=ROOT / folder, check=False)
    if done.returncode:
        sys.exit(done.returncode)


def say(text: str) -> None:
    print(f"\ntest: {text}", file=sys.stderr, flush=True)


def main(paths: Sequence[str]) -> None:
    began = time.monotonic()
    files = changed(paths)
    of = {end: [f for f in files if f.endswith(end)] for end in (".py", ".cc", ".h", ".proto")}
    compiled = of[".cc"] + of[".h"]
    say(f"quick: {len(files)} files")
    if compiled:
        run("clang-format-14", "--dry-run", "--Werror", *compiled)
    if of[".py"]:
        above = [os.path.relpath(file, "clients/python") for file in of[".py"]]
        run(PYTHON, "-m", "ruff", "check", "-q", *above, folder="clients/python")
        run(PYTHON, "-m", "ruff", "format", "-q", "--check", *above, folder="clients/python")
    if any(file.startswith("clients/python/") for file in of[".py"]):
        run(PYTHON, "-m", "mypy", folder="clients/python")
    if any(file.startswith("web/") for file in files):
        say("front end")
        run("npm", "run", "--silent", "check", folder="web")
        run("npm", "run", "--silent", "test", folder="web")
    labels = sorted({label for file in compiled + of[".proto"] for label in component(file)})
    if labels:
        say(f"C++: {' '.join(labels)}")
        run("scripts/build", "--tests", "--no-setup")
        which = f"^({'|'.join(labels)})$"
        run(
            *("ctest", "--test-dir", "build", "--output-on-failure", "--timeout", "60", "-j2"),
            *("-L", which, "--no-tests=ignore"),
        )
    folders = sorted({found for file in of[".py"] if (found := python_tests(file))})
    say(f"Python: {' '.join(['tests/structure', *folders])}")
    run(
        *(PYTHON, "-m", "pytest", "-q", "-n", "auto", "--maxprocesses", "4", "--dist", "worksteal"),
        *("--confcutdir=tests", "--quick", "tests/structure", *folders),
    )
    say(f"quick: passed in {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main(sys.argv[1:])
