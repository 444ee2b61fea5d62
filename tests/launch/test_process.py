"""The pipe over which a rank tells how it ends."""

from __future__ import annotations

import select
import threading

from dream.launch.process import RankReport, ReportPipe


def test_an_end_that_comes_while_it_is_read_is_seen() -> None:
    """What was to wake the reader may be read together with the rest, before it would sleep."""
    reports, reading, written = ReportPipe(), threading.Event(), threading.Event()
    read = reports._read

    def late() -> None:
        reading.set()
        assert written.wait(300)
        read()

    reports._read = late  # type: ignore[method-assign]
    told: list[RankReport] = []
    reports.listen(told.append)
    assert reading.wait(300)
    finishing = threading.Thread(target=reports.finish, daemon=True)
    finishing.start()
    assert select.select([reports._source], [], [], 300)[0]
    written.set()
    finishing.join(60)
    assert not finishing.is_alive()
    assert told == []
