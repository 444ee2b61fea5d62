"""Pages and indexes: every link leads somewhere, and everything stands where it is looked for."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    page
    for place in (".", "docs", "docs/strategies", "examples", "benchmarks")
    for page in (ROOT / place).glob("*.md")
)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and mkdocs make them."""
    headings = re.findall(r"^#+ (.*)$", FENCE.sub("", page.read_text()), re.MULTILINE)
    kept = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {heading.strip().replace(" ", "-") for heading in kept}


def broken(page: Path) -> list[str]:
    """Return the links of a page that lead nowhere."""
    found = []
    for link in LINK.findall(FENCE.sub("", page.read_text())):
        if link.startswith(("http:", "https:", "mailto:")):
            continue
        name, _, anchor = link.partition("#")
        aim = (page.parent / name).resolve() if name else page
        if not aim.exists() or (anchor and anchor not in anchors(aim)):
            found.append(link)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    assert broken(page) == []


def test_a_link_that_leads_nowhere_is_seen(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# One head\n[a](#one-head) [b](#two) [c](none.md) [d](page.md#one-head)\n")
    assert broken(page) == ["#two", "none.md"]


def test_every_example_stands_in_the_index() -> None:
    index = (ROOT / "examples/README.md").read_text()
    every = {each.name for each in (ROOT / "examples").iterdir() if each.is_file()}
    assert every - set(LINK.findall(index)) == {"README.md"}


def test_every_page_stands_in_the_index() -> None:
    index = ROOT / "docs/index.md"
    linked = {(index.parent / link).resolve() for link in LINK.findall(index.read_text())}
    pages = set((ROOT / "docs").rglob("*.md"))
    assert {page.relative_to(ROOT) for page in pages - linked} == {index.relative_to(ROOT)}


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 250
