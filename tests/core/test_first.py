"""Lines that make, clear or fill files, which every rank runs."""

from __future__ import annotations

import errno
from pathlib import Path

import launch_scripts
import pytest

from dream._topology import Cluster
from dream.files import first

REMEDY = "every rank of this job runs this line"


def ran(folder: Path, body: str, n: int = 3) -> tuple[int, str]:
    done = launch_scripts.dream("run", "-n", str(n), launch_scripts.write(folder, body))
    return done.returncode, done.stdout + done.stderr


def test_rank_0_is_first_and_the_others_find_what_it_made(tmp_path: Path) -> None:
    code, text = ran(
        tmp_path,
        f"""
import dream, shutil
folder = {str(tmp_path / "out")!r}
for turn in range(3):
    with dream.rank_zero_first() as first:
        if first:
            time.sleep(0.3)
            shutil.rmtree(folder, ignore_errors=True)
            os.makedirs(folder)
            open(folder + '/made', 'w').write(str(turn))
        assert first == (rank == 0)
        assert open(folder + '/made').read() == str(turn)
    mark(f'turn-{{rank}}-{{turn}}')
    if rank == 0:
        for other in (1, 2): wait_for_mark(f'turn-{{other}}-{{turn}}')
print('well')
""",
    )
    assert code == 0, text
    assert "well" in text


def test_what_rank_0_fails_of_is_told_to_all(tmp_path: Path) -> None:
    code, text = ran(
        tmp_path,
        """
import dream
try:
    with dream.rank_zero_first() as first:
        if first: raise KeyError('no such data')
        mark('ran')
except dream.WorkerFailed as error:
    open(f'{sys.argv[0]}.said', 'w').write(str(error))
    raise
except KeyError:
    wait_for_mark('said')
    raise
""",
        n=2,
    )
    assert code != 0, text
    assert "no such data" in text
    assert "Rank 0 failed in the body" in (tmp_path / "script.py.said").read_text()
    assert not (tmp_path / "script.py.ran").exists()


def test_alone_it_is_the_body(tmp_path: Path) -> None:
    code, text = ran(
        tmp_path, "import dream\nwith dream.rank_zero_first() as first: print('first', first)", n=1
    )
    assert code == 0
    assert "first True" in text


@pytest.mark.parametrize(
    ("line", "noted"),
    [
        ("os.mkdir(at); wait_for_mark('never')", True),
        ("os.mkdir(f'{at}{rank}'); os.rmdir(f'{at}{rank}'); os.rmdir(f'{at}{rank}')", True),
        ("open(at)", False),
    ],
)
def test_errors_of_such_lines_say_what_to_do(line: str, noted: bool, tmp_path: Path) -> None:
    code, said = ran(tmp_path, f"at = {str(tmp_path / 'there')!r}\n{line}\n", n=2)
    assert code != 0
    assert (REMEDY in said) == noted, said


def test_it_is_added_once_and_to_what_several_ranks_share() -> None:
    error = FileExistsError(errno.EEXIST, "it is there")
    first.explain(error, Cluster())
    assert not hasattr(error, "__notes__")
    for _ in range(2):
        first.explain(error, Cluster(world_size=2, local_world_size=2))
    assert error.__notes__ == [first.REMEDY]
