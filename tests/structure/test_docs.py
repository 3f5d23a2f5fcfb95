"""Pages: every link between files leads somewhere, and every page is named where it belongs."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"\]\(([^)\s]+)\)")


def pages() -> list[Path]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"]
    lines = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [ROOT / line for line in lines.splitlines() if (ROOT / line).is_file()]


def prose(page: Path) -> str:
    """The page without its code."""
    return re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(), flags=re.S)


def anchors(page: Path) -> set[str]:
    """Of every heading, as the site and the usual viewers make them."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.S)
    headings = re.findall(r"^#+ (.+)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


SHARDED = re.compile(r"\bFSDP[12]\b|[Pp]ipelines?\b(?= (of|stages|schedules)|,)|[Zz]ero-bubble")


def test_which_ways_to_train_on_several_ranks_are_planned_is_said_in_one_table() -> None:
    """A page that names one of them links to the table, so that no page says otherwise."""
    table = ROOT / "docs/pytorch.md"
    loose = []
    for page in sorted((ROOT / "docs").glob("*.md")):
        for paragraph in re.split(r"\n\n|\n(?=\||- )", page.read_text()):
            linked = "pytorch.md#sharded-models" in paragraph
            if page != table and SHARDED.search(paragraph) and not linked:
                loose.append(f"{page.name}: {paragraph[:80]}")

    assert loose == []
    assert "### Sharded models" in table.read_text()


def test_every_link_to_a_file_or_heading_leads_there() -> None:
    broken = []
    for page in pages():
        for link in LINK.findall(prose(page)):
            if re.match(r"[a-z]+:", link):
                continue
            path, _, anchor = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            if not target.is_file() or (anchor and anchor not in anchors(target)):
                broken.append(f"{page.relative_to(ROOT)}: {link}")

    assert broken == []


def test_every_page_of_docs_is_in_its_list_and_in_the_site() -> None:
    names = {page.name for page in (ROOT / "docs").glob("*.md")} - {"README.md"}
    listed = set(LINK.findall((ROOT / "docs/README.md").read_text()))
    site = set(re.findall(r": docs/(\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.M))

    assert names - listed == set()
    assert site == names


def test_the_readme_fits_on_a_screen_and_its_figures_were_measured() -> None:
    readme = (ROOT / "README.md").read_text()
    measured = (ROOT / "bench/results/headline.md").read_text().replace("%", " %")

    assert len(readme.splitlines()) <= 60
    figures = re.findall(r"\+\d+\.\d %|\d+\.\d MiB", readme)
    assert len(figures) >= 8
    table = measured.replace(" |", " MiB |")
    assert [figure for figure in figures if figure not in measured + table] == []


@pytest.mark.parametrize("name", ["LICENSE", "NOTICE", "CITATION.cff", "CONTRIBUTING.md"])
def test_what_a_stranger_looks_for_is_linked_from_the_readme(name: str) -> None:
    assert f"]({name})" in (ROOT / "README.md").read_text()
