# SPDX-License-Identifier: Apache-2.0
"""Stages what mkdocs.yml builds, in build/docs.

Every Markdown file of the repository is a page, at the path it has there, so that the links that
work in a checkout work in the site. Other files are staged when a page links to them. Generated are
the Python API from its docstrings, the services from the comments of the protos, and a page for
each verb of the command: what docs/command.md says of it, and its --help.
"""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STAGE = ROOT / "build/docs"
PACKAGE = ROOT / "clients/python/src/reprise"
LINK = re.compile(r"\]\(([^)\s#]+)(?:#[^)\s]*)?\)")


def tracked(*patterns: str) -> list[Path]:
    """Files of the repository, new ones that are not ignored included."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *patterns]
    lines = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [path for line in lines.splitlines() if (path := ROOT / line).is_file()]


def linked(page: Path) -> Iterator[Path]:
    """Files beside Markdown that the page links to."""
    for match in LINK.finditer(page.read_text()):
        if not re.match(r"[a-z]+:", match[1]):
            target = (page.parent / match[1]).resolve()
            if target.is_file() and target.is_relative_to(ROOT) and target.suffix != ".md":
                yield target


def stage(path: Path) -> None:
    target = STAGE / path.relative_to(ROOT)
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(path, target)


# ---- Python ----


def functions() -> Iterator[tuple[str, ast.FunctionDef | ast.ClassDef, str | None]]:
    """Every public name of the package in the order of __init__.py, its definition, and what is
    said of it: by the definition, else by its module."""
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    modules: dict[str, str] = {}
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("reprise"):
            modules |= {alias.name: node.module for alias in node.names}
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            names = ast.literal_eval(node.value)
    for name in names:
        if name not in modules:
            continue
        file = PACKAGE.parent / (modules[name].replace(".", "/") + ".py")
        module = ast.parse(file.read_text())
        found = [
            node
            for node in module.body
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name == name
        ]
        # The last one: those before it are overloads.
        yield name, found[-1], ast.get_docstring(found[-1]) or ast.get_docstring(module)


def signature(name: str, node: ast.FunctionDef | ast.ClassDef) -> str:
    if isinstance(node, ast.ClassDef):
        bases = ", ".join(ast.unparse(base) for base in node.bases)
        return f"class reprise.{name}({bases})" if bases else f"class reprise.{name}"
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return f"reprise.{name}({ast.unparse(node.args)}){returns}"


def fields(node: ast.ClassDef) -> list[str]:
    """The annotated fields of a class, as they are written."""
    return [
        f"{ast.unparse(part.target)}: {ast.unparse(part.annotation)}"
        for part in node.body
        if isinstance(part, ast.AnnAssign)
    ]


def python_page() -> str:
    text = ["# Python", "", "The public names of the package `reprise`, by their docstrings.", ""]
    for name, node, doc in functions():
        if doc is None:
            raise SystemExit(f"docs: reprise.{name} has no docstring")
        text += [f"## {name}", "", "```python", signature(name, node), "```", ""]
        if isinstance(node, ast.ClassDef) and fields(node):
            text += ["```python", *fields(node), "```", ""]
        text += ["```text", doc, "```", ""]
    return "\n".join(text)


# ---- services ----


def services_page() -> str:
    text = ["# Services", "", "From the comments of the protos. Every RPC is also a POST of"]
    text += ["[HTTP](../docs/http.md).", ""]
    for file in sorted((ROOT / "proto/reprise/v1").glob("*.proto")):
        for service in re.finditer(
            r"((?:^//[^\n]*\n)*)^service (\w+) \{\n(.*?)^\}", file.read_text(), re.M | re.S
        ):
            text += [f"## {service[2]}", "", comment(service[1]), ""]
            text += [f"[{file.name}](../{file.relative_to(ROOT)})", ""]
            calls = re.finditer(r"((?:^ *//[^\n]*\n)*)^  (rpc (\w+)[^;{]*)", service[3], re.M)
            for call in calls:
                text += [f"### {call[3]}", "", "```proto", call[2].strip(), "```", ""]
                if call[1]:
                    text += ["```text", comment(call[1]), "```", ""]
    return "\n".join(text)


# ---- the command ----


def verb_pages() -> Iterator[tuple[str, str]]:
    """Each verb, and its page."""
    program = ROOT / "build/bin/reprise"
    if not program.exists():
        raise SystemExit(f"docs: {program}: not built; run scripts/build")

    def told(*words: str) -> str:
        return subprocess.run([program, *words], check=True, capture_output=True, text=True).stdout

    sections = re.findall(
        r"^## ([^\n]+)\n\n(.*?)(?=^## |\Z)", (ROOT / "docs/command.md").read_text(), re.M | re.S
    )
    for verb in re.findall(r"^  (\w+)  +\S", told("--help").partition("Subcommands:")[2], re.M):
        text = [f"# reprise {verb}", ""]
        for title, section in sections:
            if f"`{verb}`" in title:
                text += [re.sub(r"\]\((?!https?:)(#?)", at_docs, section)]
        yield verb, "\n".join([*text, "```text", told(verb, "--help").rstrip(), "```", ""])


def at_docs(match: re.Match[str]) -> str:
    """The beginning of a link of docs/command.md, from generated/verbs."""
    return "](../../docs/" + ("command.md#" if match[1] else "")


def comment(text: str) -> str:
    return "\n".join(re.sub(r"^ *// ?", "", line) for line in text.splitlines())


def main() -> int:
    shutil.rmtree(STAGE, ignore_errors=True)
    pages = tracked("*.md")
    for page in pages:
        stage(page)
        for file in linked(page):
            stage(file)
    stage(ROOT / "docs/site.css")
    generated = STAGE / "generated"
    generated.mkdir()
    for proto in tracked("proto/*.proto"):
        stage(proto)
    (generated / "python.md").write_text(python_page())
    (generated / "services.md").write_text(services_page())
    (generated / "verbs").mkdir()
    for verb, text in verb_pages():
        (generated / "verbs" / f"{verb}.md").write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
