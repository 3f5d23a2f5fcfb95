# SPDX-License-Identifier: Apache-2.0
"""Prepares a release, or checks and tags one.

    scripts/release prepare 0.3.0      # writes the version and the changelog; commit the result
    scripts/release check              # would `tag` do it?
    scripts/release tag                # the tests, long ones too, the wheel, then the tag v0.3.0

Nothing is pushed and nothing is published: that is left to a person.
"""

from __future__ import annotations

import argparse
import datetime
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = "clients/python/src/reprise/__init__.py"
# What repeats the version, with the text around it, and how often; tests/structure/test_version.py
# compares them.
PLACES = (
    (SOURCE, '__version__ = "{}"', 1),
    ("CITATION.cff", "\nversion: {}", 1),
    ("docs/install.md", "reprise-{}-py3", 1),
    ("docs/install.md", "reprise_{}_amd64.deb", 1),
    ("deploy/kubernetes/base/kustomization.yaml", "newTag: {}", 1),
    ("deploy/kubernetes/replicas/kustomization.yaml", "newTag: {}", 1),
    # Of the daemon and of the job.
    ("deploy/kubernetes/sidecar/kustomization.yaml", "newTag: {}", 2),
    ("web/package.json", '"version": "{}"', 1),
    # The lock names the package itself twice, at two depths.
    ("web/package-lock.json", '"name": "reprise-web",\n  "version": "{}"', 1),
    ("web/package-lock.json", '"name": "reprise-web",\n      "version": "{}"', 1),
)
# The kinds of news and their headings, in the order of a section of the changelog.
KINDS = ("added", "changed", "removed", "fixed", "security")


class ReleaseError(Exception):
    """One sentence: what is in the way, and what to do."""


def say(text: str) -> None:
    print(f"release: {text}", file=sys.stderr, flush=True)


def git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        raise ReleaseError(f"git {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout.strip()


def version() -> str:
    found = re.search(r'^__version__ = "(.+)"$', (ROOT / SOURCE).read_text(), re.M)
    if found is None:
        raise ReleaseError(f"{SOURCE}: has no line __version__ = ...")
    return found.group(1)


def numbers(text: str) -> tuple[int, ...]:
    if not re.fullmatch(r"\d+\.\d+\.\d+", text):
        raise ReleaseError(f"{text}: a version is three numbers, as 0.2.0")
    return tuple(int(part) for part in text.split("."))


def news() -> dict[str, list[Path]]:
    """The files of news/ by kind: what the changelog does not say yet."""
    files: dict[str, list[Path]] = {kind: [] for kind in KINDS}
    for file in sorted((ROOT / "news").glob("*")):
        if file.name == "README.md":
            continue
        named = re.fullmatch(r"[a-z0-9-]+\.([a-z]+)\.md", file.name)
        if named is None or named[1] not in files:
            kinds = ", ".join(KINDS)
            raise ReleaseError(f"news/{file.name}: is not called NAME.KIND.md, KIND one of {kinds}")
        if not file.read_text().strip():
            raise ReleaseError(f"news/{file.name}: is empty; say what changed")
        files[named[1]].append(file)
    return files


def newest() -> re.Match[str]:
    """The heading of the newest release in the changelog."""
    found = re.search(r"^## (\S+).*\n", (ROOT / "CHANGELOG.md").read_text(), re.M)
    if found is None:
        raise ReleaseError("CHANGELOG.md: has no release")
    return found


# ---- prepare ----


def replace(path: str, old: str, new: str, count: int) -> None:
    file = ROOT / path
    text = file.read_text()
    if text.count(old) != count:
        raise ReleaseError(f"{path}: has {text.count(old)} times {old!r}, not {count}")
    file.write_text(text.replace(old, new))


def section(heading: str, files: dict[str, list[Path]]) -> str:
    """A section of the changelog, of the files of news/."""
    text = f"## {heading}\n\n"
    for kind, entries in files.items():
        if entries:
            text += f"### {kind.capitalize()}\n\n"
            for file in entries:
                text += "- " + file.read_text().strip().replace("\n", "\n  ") + "\n"
            text += "\n"
    # Links are those of a file in news/; the changelog is a folder above.
    return text.replace("](../", "](")


def prepare(new: str) -> None:
    """Writes version `new` into every place, and the news into its section of the changelog."""
    old = version()
    if numbers(new) <= numbers(old):
        raise ReleaseError(f"{new}: is not newer than {old}")
    files = news()
    if not any(files.values()):
        raise ReleaseError("news/: has no file; say what changed")
    heading = newest()[0]
    for path, form, count in PLACES:
        replace(path, form.format(old), form.format(new), count)
    today = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    replace("CHANGELOG.md", heading, section(f"{new} ({today})", files) + heading, 1)
    for entries in files.values():
        for file in entries:
            file.unlink()
    say(f"{new} is written; look at git diff, commit, then scripts/release tag")


# ---- check and tag ----


def check() -> str:
    """What must be true of a release before any test runs; returns its tag."""
    now = version()
    numbers(now)
    if git("status", "--porcelain"):
        raise ReleaseError("the work tree has changes: commit or stash them")
    if any(news().values()):
        raise ReleaseError("news/: has files; run scripts/release prepare VERSION")
    if newest()[1] != now:
        raise ReleaseError(
            f"CHANGELOG.md: the newest release is {newest()[1]}, the version is {now}"
        )
    tag = f"v{now}"
    if git("tag", "--list", tag):
        raise ReleaseError(f"the tag {tag} is there already; the next release needs a new version")
    return tag


def passes(*command: str) -> None:
    say(" ".join(command))
    code = subprocess.run(command, cwd=ROOT).returncode
    if code != 0:
        raise ReleaseError(f"{' '.join(command)} ended with code {code}; no tag was made")


def tag_release() -> None:
    tag = check()
    passes("scripts/test")
    passes("scripts/test", "--no-setup", "long")
    passes("scripts/test", "--no-setup", "docs", "wheel")
    # The tests may take an hour: what is tagged is what they saw.
    check()
    git("tag", "--annotate", tag, "--message", f"Reprise {tag[1:]}")
    say(f"tagged {tag}; the wheel is in dist/. Publish both with git push origin {tag}")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/release",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("prepare", help="write a new version").add_argument("version")
    verbs.add_parser("check", help="look whether this can be tagged")
    verbs.add_parser("tag", help="run the tests, build the wheel, tag")
    options = parser.parse_args(arguments)
    try:
        if options.verb == "prepare":
            prepare(options.version)
        elif options.verb == "check":
            say(f"{check()} can be tagged once scripts/test passes")
        else:
            tag_release()
    except ReleaseError as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
