# SPDX-License-Identifier: Apache-2.0
"""Every file that a comment, a docstring or a page names is there.

Whoever reads the name of a file looks for it: a change that moves or deletes a file mends the
sentences that name it.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

ENDINGS = "py|cc|h|ts|mjs|svelte|md|proto|sh|sql|cmake|ya?ml|json|toml|css|html"
NAME = re.compile(
    # Not within a pattern, an address, a path of some machine or another word.
    r"(?<![\w/.*{}<>$~@%=+-])"
    rf"((?:\.{{1,2}}/)*(?:[\w.-]+/)*[\w.-]*\w\.(?:{ENDINGS}))"
    r"(?![\w*{}<>/-]|\.\w)"
)
# `planner-DATE.md` stands for many files.
PLACEHOLDER = re.compile(r"(?<![a-zA-Z])[A-Z]{2,}(?![a-zA-Z])")

# A file of a user, in examples.
EXAMPLES = {
    "a.json",
    "a/resnet.0.5x.plan.json",
    "a/resnet.graph.json",
    "a/resnet.plan.json",
    "model.py",
    "plan.json",
    "resnet.0.4x.plan.json",
    "resnet.plan.json",
    "step.cc",
    "step.json",
    "trace.json",
    "train.py",
}
# A file that a build or a daemon writes.
WRITTEN = {"compile_commands.json", "server.json"}
# A file of another project.
FOREIGN = {"Lib/pickletools.py", "libpq-fe.h", "linux/magic.h", "torch/optim/adam.py"}

# Code whose comments may name a file without its folder. Those of tests name files of users.
PRODUCT = ("base/", "clients/", "formats/", "planner/", "profiler/", "proto/", "server/", "web/")
# A record of measurements names what was there on its day.
RECORDS = re.compile(r"bench/results/(?!README\.md)")

SLASHES = re.compile(r"(?:^|(?<=[\s;{}()]))//[^\n]*|/\*.*?\*/|<!--.*?-->", re.S | re.M)
HASH = re.compile(r"(?:^|(?<=\s))#[^\n]*", re.M)
PYTHON = re.compile(r'^[ \t]*[rR]?""".*?"""|""".*?"""|(?:^|(?<=\s))#[^\n]*', re.S | re.M)
DASHES = re.compile(r"--[^\n]*")
FENCE = re.compile(r"^ *```.*?^ *```", re.S | re.M)
COMMENTS = {
    **dict.fromkeys(
        (".c", ".cc", ".cu", ".css", ".h", ".js", ".mjs", ".proto", ".svelte"), SLASHES
    ),
    **dict.fromkeys(("", ".cfg", ".cmake", ".conf", ".in", ".service", ".toml", ".txt"), HASH),
    **dict.fromkeys((".sbatch", ".yaml", ".yml"), HASH),
    ".py": PYTHON,
    ".sql": DASHES,
    ".ts": SLASHES,
}


def files() -> list[str]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return [line for line in done.stdout.splitlines() if (ROOT / line).is_file()]


def tails(paths: list[str]) -> set[str]:
    """Of "a/b/c": itself, "b/c" and "c"."""
    return {path.split("/", depth)[-1] for path in paths for depth in range(path.count("/") + 1)}


def prose(path: str, text: str) -> Iterator[tuple[int, str]]:
    """Where in `text` people are spoken to: a page without its blocks of code, or comments."""
    suffix = Path(path).suffix
    if suffix == ".md":
        yield 0, FENCE.sub(lambda block: "\n" * block[0].count("\n"), text)
    elif suffix in COMMENTS:
        for found in COMMENTS[suffix].finditer(text):
            begin = found.start()
            # A string in three quotes within a line is data.
            if not found[0].startswith('"""') or begin == 0 or text[begin - 1] == "\n":
                yield begin, found[0]


def missing(path: str, text: str, known: set[str]) -> list[str]:
    """The names in the prose of a file that no file has, as "path:line: name". A name may be a path
    from the folder of the file, or the end of any path: "evaluate.h", "model/evaluate.h"."""
    lost = []
    for start, words in prose(path, text):
        for found in NAME.finditer(words):
            name = found[1]
            if "/" not in name and not path.startswith(PRODUCT) and not path.endswith(".md"):
                continue
            beside = os.path.normpath(os.path.join(os.path.dirname(path), name))
            if beside in known or os.path.normpath(name) in known or PLACEHOLDER.search(name):
                continue
            line = text.count("\n", 0, start + found.start()) + 1
            lost.append(f"{path}:{line}: {name}")
    return lost


def test_every_file_that_is_named_is_there() -> None:
    paths = files()
    known = tails(paths) | EXAMPLES | WRITTEN | FOREIGN
    lost = []
    for path in paths:
        if Path(path).suffix in {".md", *COMMENTS} and not RECORDS.match(path):
            text = (ROOT / path).read_text(errors="replace")
            lost += missing(path, text, known)

    assert lost == []


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("server/net/a.cc", "int i = 0;  // As in\n// invented/there.h.\n"),
        ("server/net/a.h", "// The buffers of invented.h.\n"),
        (
            "clients/python/src/reprise/a.py",
            'def f():\n    """Does what\n    invented.py did."""\n',
        ),
        ("tests/python/a.py", "x = 1  # (invented/there.py:12)\n"),
        ("web/src/a.ts", "/** `invented/there.svelte` draws it. */\n"),
        ("web/src/A.svelte", "<p>\n  <!-- As invented.ts has it. -->\n</p>\n"),
        ("web/src/a.ts", "import {a} from './b';\n\n// invented.ts\n"),
        ("proto/reprise/v1/a.proto", "// As invented.proto has it.\n"),
        ("scripts/a", "#!/bin/sh\n# See invented/there.md\n"),
        ("server/store/a.sql", "SELECT 1; -- invented.sql\n"),
        ("server/a/README.md", "| `invented.h` | nothing |\n"),
        ("docs/a.md", "[a](../invented/there.md)\n"),
    ],
)
def test_a_name_that_no_file_has_is_found(path: str, text: str) -> None:
    (lost,) = missing(path, text, tails(files()))

    assert re.search(r":\d+: (\.\./)?invented", lost)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("planner/a.cc", "// model/evaluate.h, evaluate.h, planner/model/evaluate.h\n"),
        ("planner/model/a.cc", "// Beside: evaluate.h; from here: ../planner.h.\n"),
        ("clients/python/src/reprise/a.py", 'a = """invented.py"""\n'),
        ("clients/python/src/reprise/a.py", 'a = "invented.py"\n'),
        ("tests/cli/a.py", "# In the user's invented.py.\n"),
        (
            "docs/a.md",
            "https://example.org/invented/there.md /invented/there.md *.md invented-DATE.md\n",
        ),
        ("docs/a.md", "```sh\nreprise plan invented.json\n```\n"),
    ],
)
def test_what_names_no_file_of_the_repository_is_passed_over(path: str, text: str) -> None:
    assert missing(path, text, tails(files())) == []
