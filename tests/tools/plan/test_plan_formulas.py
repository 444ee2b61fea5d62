"""Memory, traffic and time against values reckoned by hand."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
from plan_sketches import FLAT, REHEARSAL, SKETCH, SOURCE

from dream import ConfigurationError, Unsupported
from dream._topology import Mesh
from dream.strategies.spec import find, parse_request
from dream.tools.plan import hardware
from dream.tools.plan.calibrate import fit
from dream.tools.plan.forecast import (
    Forecast,
    Source,
    best,
    forecast,
    memory_of,
    messages_of,
    paged,
    sentence,
    share_of,
    time,
    time_of,
)
from dream.tools.plan.hardware import Hardware, NetworkLink
from dream.tools.plan.planned import scaling
from dream.tools.plan.readings import TrialJob
from dream.tools.plan.sketch import STRATEGY_KINDS, Candidate, Sending, SketchedOp, candidates, like
from dream.tools.plan.traffic import (
    given,
    memory,
    point_to_point,
    ring_all_reduce,
    ring_gather,
    seconds,
    sent,
    traffic,
    tree_all_reduce,
)

SINGLE = Candidate("single", Mesh(1, 1))
MIRRORED = Candidate("mirrored", Mesh(4, 1))
LINK = NetworkLink(latency=2.0, bandwidth=10.0)


OFFLOADED = Candidate("sharded", Mesh(1, 4), zero=3, offload=True)


def sharded(zero: int) -> Candidate:
    return Candidate("sharded", Mesh(1, 4), zero=zero)


def test_a_ring_sends_what_the_textbook_says() -> None:
    assert ring_all_reduce(120, 4, LINK) == 6 * 2 + 1.5 * 120 / 10
    assert ring_gather(120, 4, LINK) == 3 * 2 + 0.75 * 120 / 10
    assert tree_all_reduce(120, 4, LINK) == 2 * 2 * 2 + 2 * 120 / 10
    assert point_to_point(120, LINK) == 2 + 12
    assert seconds("all_reduce", 100, 1, 1, FLAT) == 0


def test_across_hosts_each_device_takes_its_part() -> None:
    inside = 2 * ring_gather(800, 8, FLAT.near)
    between = ring_all_reduce(100, 2, FLAT.far)
    assert seconds("all_reduce", 800, 16, 1, FLAT) == inside + between
    gathered = ring_gather(100, 2, FLAT.far) + ring_gather(800, 8, FLAT.near)
    assert seconds("all_gather", 800, 16, 1, FLAT) == gathered
    strided = ring_all_reduce(800, 2, FLAT.far)
    assert seconds("all_reduce", 800, 2, 8, FLAT) == pytest.approx(strided)


@pytest.mark.parametrize(
    ("candidate", "held", "gradients", "state", "peak"),
    [
        (SINGLE, 4064, 4000, 8000, 4064 + 8000 + 7320),
        (MIRRORED, 4064, 4000, 8000, 4064 + 4000 + 8000 + 5320),
        # 10 rows in 4 parts are 3 each: 120 + 400 + 480 + 120
        (sharded(1), 4064, 4000, 2000, 4064 + 4000 + 2000 + 320 + 11 * 1120),
    ],
)
def test_memory_of_each_strategy(
    candidate: Candidate, held: int, gradients: int, state: int, peak: int
) -> None:
    found = memory(candidate, SKETCH)
    assert (found.parameters, found.gradients, found.state) == (held, gradients, state)
    assert found.peak == peak


def test_what_was_rehearsed_is_told_as_it_came_out() -> None:
    """The rank that needs most; along the data axis as many ranks as there are copies."""
    less = replace(REHEARSAL, rank=1, peak=9000, sent=())
    found = memory_of(Candidate("tensor", Mesh(1, 4)), [less, REHEARSAL])
    assert (found.parameters, found.gradients, found.state, found.peak) == (1664, 1600, 3200, 10464)
    messages = messages_of(Candidate("tensor", Mesh(64, 4)), [less, REHEARSAL])
    assert given(messages) == {"all_reduce": 640 + 1604}
    assert {(m.ranks, m.stride) for m in messages} == {(4, 1), (64, 4)}
    alone = messages_of(Candidate("tensor", Mesh(1, 4)), [REHEARSAL])
    assert given(alone) == {"all_reduce": 640}


def test_shards_on_the_host_take_none_of_the_device() -> None:
    """It has what is gathered, the copy of a shard that it is gathered from, and a gradient's."""
    gathers = (Sending("all_gather", 400, "model", "forward", 2),)
    found = memory_of(OFFLOADED, [replace(REHEARSAL, sent=gathers)])
    assert (found.parameters, found.gradients, found.state) == (0, 0, 0)
    assert found.peak == 3000 + 2 * 400 // 4
    assert found.host == 1664 + 1600 + 3200
    alone = replace(OFFLOADED, mesh=Mesh(1, 1))
    assert like(alone).mesh == Mesh(1, 2)
    source = Source(lambda _: SKETCH, lambda *_: [replace(REHEARSAL, sent=gathers)])
    hosts = replace(FLAT, host=NetworkLink(0.5, 50.0), host_bandwidth=100.0)
    told = forecast(alone, source, 8, hosts, "float32", None)
    assert told.memory.peak == 3000 + 2 * 400
    assert told.memory.host == 2 * (1664 + 1600 + 3200)
    assert told.sent == 0
    assert told.time.compute == pytest.approx(4.0 + 8.0 + 2 * 2000 / 100)


def test_shards_on_the_host_are_copied_there_and_back() -> None:
    """Parameters for forward and for backward, gradients after it; the host steps."""
    hosts = replace(FLAT, host=NetworkLink(0.5, 50.0), host_bandwidth=100.0)
    found = time_of(OFFLOADED, [replace(REHEARSAL, sent=())], hosts, "float32")
    assert found.compute == pytest.approx(4.0 + 8.0 + 2000 / 100)
    assert found.communication == pytest.approx(3 * 0.5 + (2 * 1664 + 1600) / 50)
    gathers = tuple(Sending("all_gather", 40, "model", p, 3) for p in ("forward", "backward"))
    many = time_of(OFFLOADED, [replace(REHEARSAL, sent=gathers)], hosts, "float32")
    sent = 6 * seconds("all_gather", 40, 4, 1, hosts)
    assert many.communication == pytest.approx(sent + 9 * 0.5 + (2 * 1664 + 1600) / 50)
    hidden = replace(hosts, overlaps=True)
    quick = time_of(OFFLOADED, [replace(REHEARSAL, sent=())], hidden, "float32")
    assert 0 < quick.communication < found.communication


def test_a_request_for_shards_on_the_host_can_be_run() -> None:
    name, options = parse_request(OFFLOADED.request)
    assert find(name).resolve(options)["cpu_offload"] is True


@pytest.mark.parametrize(
    ("candidate", "bytes_given"),
    [
        (SINGLE, {}),
        (MIRRORED, {"all_reduce": 4000 + SKETCH.told + 32}),
        (sharded(1), {"all_reduce": 4000 + SKETCH.told + 32, "all_gather": 4 * 1120 + 32}),
    ],
)
def test_traffic_of_each_strategy(candidate: Candidate, bytes_given: dict[str, int]) -> None:
    assert given(traffic(candidate, SKETCH)) == bytes_given


def test_a_ring_of_four_sends_one_and_a_half_times_the_gradients() -> None:
    assert sent(traffic(MIRRORED, SKETCH)) == 1.5 * (4000 + SKETCH.told + 32)


def test_time_is_the_roofline_and_what_is_sent() -> None:
    messages = traffic(MIRRORED, SKETCH)
    found = time(MIRRORED, SKETCH, messages, FLAT, "float32")
    assert found.compute == pytest.approx(6.4 + 12.8 + 8.0)
    alone = [seconds("all_reduce", size, 4, 1, FLAT) for size in (4004, 32)]
    assert found.communication == pytest.approx(sum(alone))
    hidden = time(MIRRORED, SKETCH, messages, replace(FLAT, overlaps=True), "float32")
    assert hidden.communication == pytest.approx(sum(alone))  # one bucket has nothing before it


def test_a_pipeline_idles_while_it_fills() -> None:
    """S - 1 of M + S - 1 (GPipe's bubble)."""
    candidate = Candidate("pipeline", Mesh(1, 2), microbatches=6)
    found = time_of(candidate, [replace(REHEARSAL, sent=())], FLAT, "float32")
    assert found.idle == pytest.approx((4.0 + 8.0) / 6)
    assert found.compute == pytest.approx(4.0 + 8.0 + 2.0)


def test_parts_of_layers_wait_for_each_other() -> None:
    """What tensor parallelism adds up hides behind nothing; what shards gather does."""
    overlapping = replace(FLAT, overlaps=True)
    found = time_of(Candidate("tensor", Mesh(1, 4)), [REHEARSAL], overlapping, "float32")
    assert found.compute == pytest.approx(4.0 + 8.0 + 2.0)
    assert found.communication == pytest.approx(2 * seconds("all_reduce", 320, 4, 1, FLAT))
    gathers = (Sending("all_gather", 40, "model", "forward", 3),)
    told = time_of(sharded(3), [replace(REHEARSAL, sent=gathers)], overlapping, "float32")
    assert told.communication == pytest.approx(
        max(3 * seconds("all_gather", 40, 4, 1, FLAT) - 4.0,
            seconds("all_gather", 40, 4, 1, FLAT))
    )  # fmt: skip


def test_shares_of_a_batch() -> None:
    assert share_of(MIRRORED, 10) == 3
    assert share_of(Candidate("pipeline", Mesh(2, 2), microbatches=4), 16) == 2
    assert share_of(sharded(3), 8) == 2
    job = TrialJob("m.py:f", None, 10, 4, 1)  # type: ignore[arg-type]
    assert [job.share(rank, 4) for rank in range(4)] == [(0, 3), (3, 6), (6, 8), (8, 10)]
    assert [replace(job, shares=2).share(rank, 4) for rank in range(4)] == [
        (0, 5), (0, 5), (5, 10), (5, 10),
    ]  # fmt: skip


def test_candidates_are_what_devices_batch_and_layers_allow() -> None:
    requests = [one.request for one in candidates(4, 8, 8, STRATEGY_KINDS)]
    assert requests == [
        "single", "mirrored", "sharded:zero=1", "sharded:zero=2", "sharded:zero=3",
        "model_parallel:split=tensor,model=4",
        "model_parallel:split=pipeline,model=4,microbatches=8",
        "hybrid:data=2,split=tensor,model=2", "hybrid:data=2,split=pipeline,model=2,microbatches=4",
    ]  # fmt: skip
    offloaded = [one.request for one in candidates(4, 8, 8, STRATEGY_KINDS, offloads=True)]
    assert [one for one in offloaded if one not in requests] == ["sharded:zero=3,cpu_offload=true"]
    alone = [one.request for one in candidates(1, 8, 8, STRATEGY_KINDS, offloads=True)]
    assert alone == ["single", "sharded:zero=3,cpu_offload=true"]
    few = [one.request for one in candidates(4, 2, 2, ("single", "mirrored"))]
    assert few == ["single"]
    many = [one.request for one in candidates(16, 8, 16, STRATEGY_KINDS)]
    assert many[1] == "multi_worker_mirrored"
    assert "sharded:zero=3,data=2" in many
    assert not any("data" in each for each in requests if each.startswith("sharded"))


def test_copies_beyond_two_do_what_two_do() -> None:
    many = Candidate("tensor", Mesh(512, 8), several_hosts=True)
    assert like(many) == Candidate("tensor", Mesh(2, 8))
    assert like(sharded(3)) == like(OFFLOADED) == sharded(3)


def foretold(candidate: Candidate, peak: int, step: float) -> Forecast:
    source = Source(lambda _: SKETCH, lambda one, _: [REHEARSAL] if one.zero > 1 else None)
    made = forecast(candidate, source, 8, FLAT, "float32", 20_000)
    return replace(
        made, memory=replace(made.memory, peak=peak), time=replace(made.time, compute=step,
                                                                   communication=0.0, idle=0.0)
    )  # fmt: skip


def test_the_simplest_of_the_fastest_that_fit_is_taken() -> None:
    rows = [
        foretold(SINGLE, 10_000, 4.0),
        foretold(MIRRORED, 30_000, 1.0),
        foretold(sharded(3), 9_000, 1.3),
        foretold(sharded(2), 15_000, 1.32),
    ]
    taken = best(rows)
    assert taken is not None
    assert taken.candidate == sharded(2)  # within 5 % of zero 3, and simpler
    assert "Take sharded, zero 2 (--strategy sharded:zero=2)" in sentence(rows)
    assert "mirrored would need" in sentence(rows)


def test_where_nothing_fits_the_sentence_says_what_is_missing() -> None:
    rows = [foretold(SINGLE, 90_000, 1.0), foretold(sharded(3), 30_720, 1.0)]
    assert best(rows) is None
    assert "the thriftiest, sharded, zero 3, needs 30 KB" in sentence(rows)


def test_an_operation_that_was_timed_takes_what_it_took() -> None:
    timed = replace(FLAT, known={"add": 2.0}, overheads={"mirrored": 0.5}, launch=100.0)
    op = SketchedOp("forward", "matmul", 10**6, 10**6, call="add")
    assert timed.seconds(op, "float32") == 2.0
    assert timed.under("mirrored").seconds(op, "float32") == 2.5
    assert timed.under("mirrored").seconds(op, "float32", share=0.5) == 1.5
    unknown = replace(op, call="multiply")
    assert timed.under("mirrored").seconds(unknown, "float32") == 1000.0 + 100.0


def test_memory_that_was_given_back_costs_its_time_again() -> None:
    costly = replace(FLAT, fresh=0.5)
    assert paged(5320, 1000, costly) == 0.5 * 3320
    assert paged(1500, 1000, costly) == 0
    whole = replace(SKETCH, largest=1000)
    times = [time(SINGLE, whole, [], one, "float32").step for one in (FLAT, costly)]
    assert times[1] - times[0] == pytest.approx(0.5 * 3320)
    stage = replace(REHEARSAL, largest=1500)
    times = [time_of(sharded(3), [stage], one, "float32").step for one in (FLAT, costly)]
    assert times[1] - times[0] == pytest.approx(0.5 * 1000)


def test_a_machine_is_told_of_the_operations_of_its_candidates() -> None:
    told: dict[int, int] = {}

    def machine(devices: int, ops: Iterable[SketchedOp]) -> Hardware:
        told[devices] = max(told.get(devices, 0), len(list(ops)))
        return FLAT

    scaling(SOURCE, machine, 8, (8,), "float32", 10**6, ("single", "mirrored"))
    assert told == {1: len(SKETCH.ops), 8: len(SKETCH.ops)}


def test_thousands_of_devices_are_reckoned_like_few() -> None:
    kinds = ("single", "mirrored")
    points = scaling(SOURCE, lambda *_: FLAT, 8, (1, 8, 4096), "float32", 10**6, kinds)
    assert [point.batch for point in points] == [8, 64, 8 * 4096]
    assert points[0].efficiency == 1
    assert 1 > points[1].efficiency > points[2].efficiency > 0


def test_a_link_is_read_off_two_ranks() -> None:
    """2 latency + bytes / bandwidth."""
    link = fit([(size, 2 * 50e-6 + size / 1e9) for size in (4096, 10**6, 10**7)])
    assert link.latency == pytest.approx(50e-6)
    assert link.bandwidth == pytest.approx(1e9)


@pytest.mark.parametrize("name", hardware.PRESETS)
def test_presets_are_complete_and_say_where_they_are_from(name: str) -> None:
    one = hardware.preset(name)
    assert one.memory
    assert one.memory >= 11 << 30
    assert set(one.flops) >= {"float32", "float16"}
    assert one.near.bandwidth > one.far.bandwidth > 0
    assert one.near.latency < one.far.latency
    assert one.bandwidth > one.near.bandwidth
    assert any("datasheet" in text or "specifications" in text for text in one.sources)
    assert any(source.startswith("assumed") for source in one.sources)


def test_presets_hold_the_makers_figures() -> None:
    share = hardware.FLOPS_REACHED * 1e12
    assert hardware.preset("h100").flops["bfloat16"]["matmul"] == 989 * share
    assert hardware.preset("a100-p4d").bandwidth == pytest.approx(1555e9 * 0.8)
    assert hardware.preset("v100").near.bandwidth == pytest.approx(150e9 * 0.8)
    assert hardware.preset("t4").memory == 16 << 30
    old = hardware.preset("gtx-1080-ti").flops
    assert old["float16"]["matmul"] == pytest.approx(old["float32"]["matmul"] / 64, rel=0.01)
    assert hardware.preset("a100-pcie").near.bandwidth == 2 * hardware.preset("t4").near.bandwidth
    with pytest.raises(ConfigurationError, match="Did you mean 'a100-dgx'"):
        hardware.preset("a100-dgxx")
    with pytest.raises(Unsupported, match="does not compute in this precision"):
        hardware.preset("t4").rates("bfloat16")
