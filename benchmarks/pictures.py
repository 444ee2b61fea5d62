"""Draw the README's pictures of a terminal and of a report, of what really came.

python benchmarks/pictures.py terminal docs/terminal.svg "dream run -n 2 examples/digits_torch.py"
python benchmarks/pictures.py report docs/report.png out/report.html

The report is one of `dream compare --report out`; it needs Chromium (apt-get install chromium).
"""

from __future__ import annotations

import os
import pty
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from io import StringIO
from pathlib import Path

from PIL import Image
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

COLUMNS = 88
WIDTH, HEIGHT = 1320, 1000
COLOURS = 128
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def terminal(file: Path, commands: list[str]) -> None:
    """Show what each command prints, under its line."""
    console = Console(width=COLUMNS, record=True, file=StringIO())
    for command in commands:
        console.print(Text(f"$ {command}", style="bold"))
        console.print(Text.from_ansi(said(command)))
    # The letters are the reader's own: a picture that fetches a font is refused in many places.
    plain = re.sub(r"@font-face \{\{.*?\}\}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    svg = console.export_svg(title="", code_format=plain.replace("Fira Code", "monospace"))
    file.write_text(re.sub(r"[ \t]+\n", "\n", svg))


def said(command: str) -> str:
    """Run a command in a terminal, which programs colour their words for."""
    mine, its = pty.openpty()
    environ = os.environ | {"COLUMNS": str(COLUMNS), "TERM": "xterm-256color"}
    with subprocess.Popen(
        shlex.split(command), env=environ, stdin=subprocess.DEVNULL, stdout=its, stderr=its
    ) as process:
        os.close(its)
        found = b""
        while part := _read(mine):
            found += part
    os.close(mine)
    if process.returncode:
        raise SystemExit(f"{command}: exit code {process.returncode}\n{found.decode()}")
    return found.decode().replace("\r\n", "\n").rstrip("\n")


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 4096)
    except OSError:  # whoever wrote has ended
        return b""


def report(file: Path, page: Path) -> None:
    """Show the head of a page as a browser does."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        raise SystemExit("no Chromium here: apt-get install chromium")
    with tempfile.TemporaryDirectory() as folder:
        shot = Path(folder, "page.png")
        subprocess.run(
            [browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
             "--hide-scrollbars", f"--user-data-dir={folder}", f"--screenshot={shot}",
             f"--window-size={WIDTH},{HEIGHT}", page.absolute().as_uri()],
            check=True, capture_output=True, timeout=600,
        )  # fmt: skip
        Image.open(shot).convert("RGB").quantize(COLOURS).save(file, optimize=True)


if __name__ == "__main__":
    if len(sys.argv) < 4 or sys.argv[1] not in ("terminal", "report"):
        raise SystemExit(__doc__)
    kind, file, *rest = sys.argv[1:]
    if kind == "terminal":
        terminal(Path(file), rest)
    else:
        report(Path(file), Path(rest[0]))
