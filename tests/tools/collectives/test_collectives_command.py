"""`dream collectives`: a small run on real ranks, and what is refused before one."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dream import DreamError
from dream._commands import app

FACTORS = {"all_reduce": {2: 1, 3: 4 / 3}, "all_gather": {2: 1 / 2, 3: 2 / 3}}
SENT = {  # by each rank, of one byte
    "ring": {2: [1, 1], 3: [4 / 3] * 3},
    "naive": {2: [1, 1], 3: [2, 1, 1]},
    "halving_doubling": {2: [1, 1], 3: [2, 1, 1]},
}


def collectives(*arguments):
    return CliRunner().invoke(app, ["collectives", *arguments], catch_exceptions=True)


def measured(folder: Path, n: int, *arguments: str):
    """The rows of a small run, and what it printed."""
    figures, picture = folder / "out.json", folder / "out.svg"
    done = collectives(
        "-n", str(n), "--sizes", "1KB,96KB", "--rounds", "3", "--operations",
        "all_reduce,all_gather", "--json", str(figures), "--plot", str(picture), *arguments,
    )  # fmt: skip
    assert done.exit_code == 0, (done.output, done.exception)
    return json.loads(figures.read_text()), picture.read_text(), done.stdout


def check(found, n, contenders):
    rows = found["rows"]
    names = [(row["operation"], row.get("transport") or row["algorithm"]) for row in rows]
    assert dict.fromkeys(names) == dict.fromkeys(contenders)
    assert len(rows) == 2 * len(contenders)
    for row in rows:
        size, seconds = row["size"], row["seconds"]
        assert size in (1024, 96 * 1024) if n == 2 else size in (1032, 96 * 1024)
        low, high = row["seconds_quartiles"]
        assert 0 < low <= seconds <= high
        speed = size / seconds * FACTORS[row["operation"]][n]
        assert row["bus_bandwidth"] == pytest.approx(speed)
        assert row["against_memcpy"] == pytest.approx(speed / row["memcpy_bandwidth"])
        assert row["memcpy_bandwidth"] > 0
        if "algorithm" in row:
            expected = [share * size for share in SENT[row["algorithm"]][n]]
            assert row["sent_by_rank"] == pytest.approx(expected, abs=0, rel=1e-12)
            assert row["sent_by_formula"] == pytest.approx(expected, abs=0, rel=1e-12)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return measured(
        tmp_path_factory.mktemp("small"), 2,
        "--framework", "torch", "--reduction", "gloo", "--algorithm", "ring,naive",
    )  # fmt: skip


def test_the_figures_are_those_of_the_formulas(small):
    contenders = [("all_reduce", name) for name in ("gloo", "ring", "naive")]
    check(small[0], 2, [*contenders, ("all_gather", "gloo")])
    assert small[0]["settings"]["n"] == 2
    assert small[0]["machine"]["cores"] >= 1
    assert small[0]["versions"]["torch"].startswith("2.")


def test_the_table_is_for_people(small):
    shown = small[2]
    assert "torch, 2 ranks" in shown
    assert "96 KB  gloo" in shown
    assert "1,024 x 2" in shown
    assert "slowest rank" in shown


def test_the_picture_has_a_line_for_each(small):
    picture = small[1]
    assert picture.count("<svg") == 1
    for words in ("torch, gloo", "torch, naive algorithm", "every rank copies memory", "96 KB"):
        assert words in picture


@pytest.mark.exhaustive
@pytest.mark.parametrize(("framework", "own"), [("torch", "gloo"), ("tensorflow", "grpc")])
def test_all_transports_in_one_job_of_three(tmp_path, framework, own):
    found, _, shown = measured(
        tmp_path, 3, "--framework", framework, "--algorithm", "halving_doubling"
    )
    every = (own, "horovod", "shared_memory", "hierarchical")
    contenders = [(operation, name) for operation in FACTORS for name in every]
    check(found, 3, [*contenders, ("all_reduce", "halving_doubling")])
    if found["machine"]["cores"] < 3:
        assert "3 ranks share" in shown


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--operations", "all_reduc"], "all_reduc"),
        (["--sizes", "4KB,big"], "'big'"),
        (["-n", "1"], "two ranks"),
        (["--rounds", "0"], "rounds=0"),
        (["--timeout", "0"], "timeout=0"),
        (["--algorithm", "star"], "star"),
        (["--algorithm", "ring", "--operations", "broadcast"], "--algorithm ring"),
        (["--framework", "jax"], "jax"),
        (["--reduction", "goo"], "gloo"),
        (["--reduction", "nccl"], "nccl-tests"),
        (["--framework", "torch", "--reduction", "grpc"], "gloo"),
        (["--json", "absent/out.json"], "--json absent"),
        (["--plot", "absent/out.png"], "--plot absent"),
        (["--plot", "out.jpeg2"], ".png, .svg, .pdf"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_any_rank_starts(arguments, words, monkeypatch):
    monkeypatch.setattr("dream.tools.collectives.main.run", None)
    done = collectives(*arguments)
    assert isinstance(done.exception, DreamError), done.exception
    assert words in str(done.exception)
    assert done.output == ""


def test_a_picture_without_matplotlib_names_the_extra(monkeypatch):
    monkeypatch.setattr("dream.tools.collectives.report.find_spec", lambda _: None)
    done = collectives("--plot", "out.png")
    assert isinstance(done.exception, DreamError)
    assert "pip install 'dream-systems[plot]'" in str(done.exception)
