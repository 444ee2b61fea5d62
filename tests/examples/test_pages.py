"""Pages and indexes: every link leads somewhere, and everything stands where it is looked for."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from page_blocks import READERS

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    page
    for place in (".", "docs", "docs/strategies", "examples", "benchmarks")
    for page in (ROOT / place).glob("*.md")
)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)

WHOLE = "# runs as it stands\n"
CODE = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
BLOCKS = [(page, code) for page in PAGES for code in CODE.findall(page.read_text())]


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


def messages() -> list[str]:
    """Return what the page of errors quotes, less what stands for something else."""
    rows = re.findall(r"^\| (`.*?) \|", (ROOT / "docs/errors.md").read_text(), re.MULTILINE)
    quoted = [part for row in rows for each in re.findall("`([^`]+)`", row) for part in
              re.split(r"\.\.\.|Rank R|dream run: ", each)]  # fmt: skip
    return [part.strip() for part in quoted if len(part.split()) > 1]


def said() -> str:
    """Return every text in the code, without the values in it."""
    found = []
    for folder in ("dream", "adapters"):
        for file in (ROOT / folder).rglob("*.py"):
            texts = (each for each in ast.walk(ast.parse(file.read_text()))
                     if isinstance(each, ast.Constant))  # fmt: skip
            found += [each.value for each in texts if isinstance(each.value, str)]
    return "\n".join(found)


def test_messages_on_the_page_of_errors_are_those_of_the_code() -> None:
    code, quoted = said(), messages()
    assert len(quoted) > 20
    assert [each for each in quoted if each not in code] == []


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 250


@pytest.mark.parametrize(("page", "code"), BLOCKS, ids=lambda it: getattr(it, "name", ""))
def test_code_on_a_page_is_python(page: Path, code: str) -> None:
    """A block that ends with its head, as where only the options are shown, is taken for one."""
    ast.parse(code + "    ...\n" if code.rstrip().endswith(":") else code, str(page))


PLACED = [
    pytest.param(page.stem, place, code, id=f"{page.stem}-{place}")
    for page in PAGES
    for place, code in enumerate(CODE.findall(page.read_text()))
    if not code.startswith(WHOLE)
]


@pytest.mark.exhaustive
@pytest.mark.parametrize(("page", "place", "code"), PLACED)
def test_a_block_of_code_runs(page: str, place: int, code: str, tmp_path: Path) -> None:
    """With what its reader has at hand."""
    reader = READERS[page, place]
    script = tmp_path / "script.py"
    script.write_text(reader.script(code))
    done = subprocess.run(
        [sys.executable, "-m", "dream", "run", *reader.given, str(script)], cwd=tmp_path,
        env=os.environ | {"OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3", **reader.env},
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{script.read_text()}\n{done.stdout[-1000:]}{done.stderr[-3000:]}"


def test_every_block_has_a_reader() -> None:
    assert {(page, place) for page, place, _ in (one.values for one in PLACED)} == {*READERS}


def test_whole_scripts_are_found() -> None:
    assert any(code.startswith(WHOLE) for _, code in BLOCKS)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("page", "code"),
    [pair for pair in BLOCKS if pair[1].startswith(WHOLE)],
    ids=lambda it: getattr(it, "name", ""),
)
def test_whole_scripts_print_the_same_on_two_ranks(page: Path, code: str, tmp_path: Path) -> None:
    script = tmp_path / f"{page.stem}.py"
    script.write_text(code)
    told = []
    for start in ([], ["-m", "dream", "run", "-n", "2"]):
        done = subprocess.run(
            [sys.executable, *start, str(script)], env=os.environ | {"OMP_NUM_THREADS": "1"},
            capture_output=True, text=True, timeout=600, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        told.append(done.stdout)
    assert told[0] == told[1] != ""


@pytest.mark.exhaustive
def test_the_figures_are_those_of_the_tables(tmp_path: Path) -> None:
    """Drawn anew, they are what stands in docs/: whoever measures again draws again."""
    pytest.importorskip("matplotlib")
    subprocess.run(
        [sys.executable, ROOT / "benchmarks/figures.py", tmp_path], check=True, timeout=300
    )
    for name, shown in (("figures.svg", "4e-07"), ("scaling.svg", "hosts, 1 Gbit/s")):
        drawn, stands = ((folder / name).read_text() for folder in (tmp_path, ROOT / "docs"))
        texts = [re.findall(r"<text[^>]*>([^<]*)", each) for each in (drawn, stands)]
        assert texts[0] == texts[1]
        assert shown in texts[0]
        drawn_at = [re.findall(r'<path d="([^"]*)" clip', each) for each in (drawn, stands)]
        assert drawn_at[0] == drawn_at[1] != []
