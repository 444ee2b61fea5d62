"""Published tables, foretold from their first rows: a formula that forgets what it should count
misses the others."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from dream.tools.plan import hardware
from dream.tools.plan.published import held
from dream.tools.plan.published.tables import Table, tables
from dream.tools.plan.published.transformer import Gpt, Sharded, TransformerLayout

GPT3 = Gpt(96, 96, 12288)
A100 = hardware.preset("a100-dgx")


@pytest.mark.parametrize("table", tables(), ids=lambda table: table.source)
def test_a_table_is_foretold_from_its_first_row(table: Table) -> None:
    found = held.hold(table)
    assert found.rows[0].error == pytest.approx(0.0, abs=1e-6)
    assert found.within, [(row.label, row.error) for row in found.rows]
    right, pairs = found.pairs
    assert right >= 0.85 * pairs


def test_a_gpts_parameters_and_operations_are_the_papers() -> None:
    """174.6e9 and its operations at 153 TFLOP/s on 384 devices: 300e9 tokens in 84 days."""
    assert GPT3.parameters == pytest.approx(174.6e9, rel=1e-3)
    assert Gpt(128, 160, 25600).parameters == pytest.approx(1008e9, rel=1e-3)
    steps = 300e9 / (1536 * GPT3.sequence)
    days = steps * GPT3.flops(1536) / (384 * 153e12) / 86400
    assert days == pytest.approx(84, rel=0.02)


def test_idle_stages_cost_what_the_bubble_does() -> None:
    """Of p stages and m microbatches, (p - 1) / m of the time, and half where each device holds
    two stages; what is sent and updated is little beside it."""
    fast = replace(A100, near=hardware.NetworkLink(0.0, 1e18), far=hardware.NetworkLink(0.0, 1e18))
    few, many = (
        TransformerLayout(96, batch, 8, 12, 1, interleaved=False).seconds(GPT3, fast) / batch
        for batch in (12, 12_000)
    )
    assert few / many == pytest.approx(1 + 11 / 12, rel=0.01)
    assert TransformerLayout(96, 12, 8, 12, 1).seconds(GPT3, fast) < 0.6 * 12 * few


def test_shards_hide_until_their_network_is_too_slow() -> None:
    near = Sharded(64, 2).seconds(GPT3, A100)
    cut = replace(A100, far=hardware.NetworkLink(0.0, A100.far.bandwidth / 100))
    assert Sharded(64, 2).seconds(GPT3, cut) > 3 * near


def test_it_is_shown_written_and_drawn(tmp_path: Path) -> None:
    figures, picture = tmp_path / "figures.json", tmp_path / "picture.svg"
    assert held.main(figures, picture)
    written = json.loads(figures.read_text())["tables"]
    assert [len(one["rows"]) for one in written] == [len(one.rows) for one in tables()]
    assert picture.read_text().lstrip().startswith("<?xml")
