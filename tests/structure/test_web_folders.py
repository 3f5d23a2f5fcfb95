"""The arrows between folders of web/src point one way only: read from every import."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest

WEB = Path(__file__).resolve().parents[2] / "web"
# What stands right in web/src is the roof: it imports from every folder.
ROOF = "App.svelte"

# `import ... from '../x'`, `export ... from '../x'`, `import '../x'` and `import('../x')`, over
# several lines, too. Imports for the sake of types alone are arrows like others.
IMPORT = re.compile(r"""(?:\bfrom|\bimport)\s*\(?\s*['"](\.[^'"]*)['"]""")


def order_in(readme: str) -> list[str]:
    """The folders as the README draws them, the lowest first."""
    drawings = re.findall(r"^gen <- .*$", readme, re.MULTILINE)
    assert len(drawings) == 1, "web/README.md draws the order of folders once: gen <- ..."
    return [name.strip() for name in drawings[0].split("<-")]


def imported(text: str, folder: str) -> Iterator[str]:
    """The folders, of web/src or the roof, from which a file in `folder` imports."""
    for path in IMPORT.findall(text):
        parts: list[str] = [] if folder == ROOF else [folder]
        for part in PurePosixPath(path).parts:
            if part == "..":
                parts.pop()
            elif part != ".":
                parts.append(part)
        yield parts[0] if len(parts) > 1 else ROOF


def backward(arrows: dict[str, set[str]], order: list[str]) -> list[str]:
    """Arrows that do not lead to what is lower. Without one there is no circle either."""
    return [
        f"{source} imports from {target}"
        for source, targets in arrows.items()
        for target in sorted(targets - {source})
        if target not in order or order.index(target) > order.index(source)
    ]


def folder_of(path: Path) -> str:
    parts = path.relative_to(WEB / "src").parts
    return parts[0] if len(parts) > 1 else ROOF


def sources() -> list[Path]:
    files = [path for path in (WEB / "src").rglob("*") if path.suffix in {".ts", ".svelte"}]
    return sorted(path for path in files if folder_of(path) != "gen")


@pytest.fixture
def order() -> list[str]:
    return order_in((WEB / "README.md").read_text())


def test_a_circle_of_folders_is_found() -> None:
    arrows = {"format": {"data"}, "data": {"format", "gen"}}

    assert backward(arrows, ["gen", "format", "data"]) == ["format imports from data"]


def test_every_way_to_write_an_import_is_read() -> None:
    text = """
      import type {Run} from '../gen/reprise/v1/query_pb';
      import {
        poll,
      } from '../api/poll';
      export {num} from "../format/number";
      import '../styles/base.css';
      const page = () => import('./Runs.svelte');
      const app = import('../App.svelte');
      import {mount} from 'svelte';
    """

    assert list(imported(text, "pages")) == ["gen", "api", "format", "styles", "pages", ROOF]
    assert list(imported("import Runs from './pages/Runs.svelte'", ROOF)) == ["pages"]


def test_a_folder_imports_only_from_those_that_the_readme_draws_below_it(order: list[str]) -> None:
    wrong = [
        f"{path.relative_to(WEB)}: {arrow}"
        for path in sources()
        for arrow in backward(
            # The style sheets have no code, and the roof alone brings them in.
            {folder_of(path): set(imported(path.read_text(), folder_of(path)))},
            [*order[:-1], "styles", order[-1]],
        )
    ]

    assert wrong == []


def test_the_readme_draws_every_folder(order: list[str]) -> None:
    assert {folder_of(path) for path in sources()} | {"gen"} == set(order)
