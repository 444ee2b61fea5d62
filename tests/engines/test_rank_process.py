"""The process of a rank that an actor starts, called here as the actor's owner calls it."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from dream.launch.engines.rank_process import RankProcess


def test_lines_that_nobody_fetched_in_time_are_counted(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, time\nprint('first', flush=True)\nfor i in range(5000): print(i)\n"
        "sys.stdout.flush()\n"
        "time.sleep(1)  # two pipes have no order: this may come before those and be left out\n"
        "print('last', file=sys.stderr)\n"
    )
    rank = RankProcess()
    assert rank.start(("script", str(script)), {}, str(tmp_path)) == ""
    limit = time.monotonic() + 60
    while rank._process is not None and rank._process.poll() is None:
        assert time.monotonic() < limit
        time.sleep(0.05)
    pieces, code, _ = rank.news()
    after, _, _ = rank.news()
    rank._guard.close()
    shutil.rmtree(rank._folder)
    assert code == 0
    assert pieces[0] == (True, b"... 906 lines left out\n")
    assert len(pieces) == 4097
    assert (False, b"4999\n") in pieces
    assert (True, b"last\n") in pieces
    assert after == []
