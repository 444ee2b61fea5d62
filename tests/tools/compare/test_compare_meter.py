"""What a rank measures and leaves behind, and what every rank starts from."""

import socket
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from threading import Barrier
from time import sleep

import numpy as np
import pytest
from compare_made import MIRRORED, finished

from dream import ConfigurationError
from dream.tools import machine, record
from dream.tools.compare import meter, outcome, tasks, worker
from dream.tools.compare.outcome import RankRecord
from dream.tools.record import Clock


@pytest.fixture
def clock(monkeypatch):
    """A second between any two looks at the clock."""
    seconds = count(10.0)
    monkeypatch.setattr(meter, "monotonic", lambda: next(seconds))


@pytest.mark.usefixtures("clock")
def test_the_first_epoch_is_the_warm_up():
    watch = meter.Meter()
    watch.begin()  # at 10
    watch.step(64)  # at 11
    watch.step(64)  # not looked at
    watch.epoch(2.0, 128)  # at 12
    watch.step(64)
    watch.epoch(1.0, 128)  # at 13
    watch.epoch(0.5, 128)  # at 14
    assert watch.window == (12.0, 14.0, 256)
    assert watch.epoch_seconds == [2.0, 3.0, 4.0]
    assert watch.losses == [2.0, 1.0, 0.5]
    assert watch.first_step > 1e9


@pytest.mark.usefixtures("clock")
def test_in_a_single_epoch_it_is_the_first_step():
    watch = meter.Meter()
    watch.step(64)
    watch.epoch(2.0, 200)
    assert watch.window == (10.0, 11.0, 136)


@pytest.mark.usefixtures("clock")
def test_an_epoch_whose_batches_others_took_is_an_epoch():
    watch = meter.Meter()
    watch.epoch(2.0, 128)  # begins at 10, marked at 11 and 12
    watch.begin()  # at 13
    watch.step(64)  # not looked at
    watch.epoch(1.0, 128)  # at 14
    assert watch.epoch_seconds == [2.0, 4.0]
    assert watch.window == (12.0, 14.0, 128)
    assert watch.first_step > 1e9


@pytest.mark.parametrize("told", ["before", "after"])
def test_what_a_step_of_a_script_sends(told):
    """Whether it is told of before its sums or after them, and whatever is sent otherwise."""
    server = socket.create_server(("127.0.0.1", 0))
    sender = socket.create_connection(server.getsockname())
    taker, _ = server.accept()

    def send(size):
        sender.sendall(b"x" * size)
        left = size
        while left:
            left -= len(taker.recv(left))

    watch = Clock()
    send(5000)  # first weights
    for _ in range(11):
        if told == "before":
            watch.step()
        send(1000)
        if told == "after":
            watch.step()
    send(70_000)  # parameters are gathered
    pace = watch.pace()
    for each in (sender, taker, server):
        each.close()
    assert pace.sent == pytest.approx(1000)
    assert len(pace.clocks) == 11


@pytest.mark.usefixtures("clock")
def test_what_is_done_aside_takes_no_time():
    watch = meter.Meter()
    watch.begin()  # at 10
    watch.step(64)
    watch.epoch(2.0, 128)  # at 12
    with watch.aside():  # from 13 to 14
        pass
    watch.epoch(1.0, 128)  # at 15, less 1
    assert watch.epoch_seconds == [2.0, 4.0]


def test_a_slow_step_sleeps_in_proportion_to_what_it_took(monkeypatch):
    clock, slept = count(10.0, 0.5), []
    monkeypatch.setattr(meter, "monotonic", lambda: next(clock))
    monkeypatch.setattr(meter, "sleep", slept.append)
    watch = meter.Meter(slow=4)
    watch.begin()
    watch.step(64)
    assert slept == [1.5]
    usual = meter.Meter()
    usual.begin()
    usual.step(64)
    assert slept == [1.5]


def test_steps_that_are_told_of_at_the_same_time_count_once_each(monkeypatch):
    """Keras calls `on_train_batch_end` in threads where every callback allows it."""
    told = 6
    together = Barrier(told)
    monkeypatch.setattr(meter, "time", lambda: sleep(0.05) or 1.0)  # others come meanwhile
    watch = meter.Meter()
    watch.begin()
    watch.begin()  # before the first is counted

    def tell(_: int) -> None:
        together.wait(60)
        watch.step(64)

    with ThreadPoolExecutor(told) as threads:
        list(threads.map(tell, range(told)))
    watch.epoch(2.0, 64 * told)
    assert watch.steps == told
    assert len(watch.epoch_seconds) == 1


@pytest.mark.parametrize(
    ("steps", "epochs", "every", "replicas", "histogram"),
    [
        (4, 1, 1, 2, {0: 8}),
        (4, 1, 2, 2, {0: 4, 1: 4}),
        (3, 2, 2, 2, {0: 8, 1: 4}),  # averaged on steps 2, 4 and 6, and after step 3
        (2, 1, 8, 3, {0: 3, 2: 3}),
    ],
)
def test_what_replicas_have_not_seen_between_averages(steps, epochs, every, replicas, histogram):
    told = worker.between_averages(steps, epochs, every, replicas)
    assert told.histogram == histogram
    assert told.updates == steps * epochs * replicas


def test_a_record_comes_back_as_it_was(tmp_path):
    done = finished(MIRRORED)
    record.write(tmp_path, done.records[1], done.parameters[1])
    assert outcome.read_record(tmp_path, 1) == done.records[1]
    assert isinstance(outcome.read_record(tmp_path, 1), RankRecord)
    back = record.read_parameters(tmp_path, 1)
    assert outcome.digest(back) == done.records[1].digest
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rank1.json", "rank1.npz"]
    with pytest.raises(FileNotFoundError):
        outcome.read_record(tmp_path, 0)


def test_the_digest_sees_a_bit_a_shape_a_dtype_and_a_name():
    base = {"a": np.ones((2, 3), np.float32), "b": np.zeros(3, np.float32)}
    others = [
        base | {"b": np.array([0.0, -0.0, 0.0], np.float32)},
        base | {"a": np.ones((3, 2), np.float32)},
        base | {"b": np.zeros(3, np.int32)},
        {"a": base["a"], "c": base["b"]},
    ]
    assert outcome.digest(dict(reversed(base.items()))) == outcome.digest(base)
    assert len({outcome.digest(each) for each in [base, *others]}) == 5


def test_a_transposed_array_counts_as_what_it_shows():
    kernel = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert outcome.digest({"a": kernel}) == outcome.digest({"a": np.asfortranarray(kernel)})


def test_memory_is_in_bytes():
    assert 10**7 < machine.peak_bytes() < 10**11


@pytest.mark.parametrize("name", tasks.TASKS)
def test_a_tasks_data_are_the_same_each_time_and_the_last_batch_uneven(name):
    task = tasks.find(name)
    ours, again = task.load(), task.load()
    assert len(ours.x) == len(ours.y) == task.samples
    assert len(ours.x_test) == len(ours.y_test) > 80
    assert (ours.x == again.x).all()
    assert (ours.y_test == again.y_test).all()
    assert task.samples % 64
    assert np.isfinite(ours.x).all()


@pytest.mark.parametrize("name", tasks.TASKS)
def test_first_weights_hang_on_the_seed_alone(name):
    task = tasks.find(name)
    ours, again, other = (tasks.first_weights(task, seed) for seed in (0, 0, 1))
    assert {name: value.shape for name, value in ours.items()} == dict(task.shapes)
    assert outcome.digest(ours) == outcome.digest(again) != outcome.digest(other)


def test_an_unknown_task_names_those_there_are():
    with pytest.raises(ConfigurationError, match=r"'digits'.*digits-mlp"):
        tasks.find("digits")


def test_bytes_over_sockets_are_counted():
    if machine.bytes_sent() is None:
        pytest.skip("this system does not count bytes by socket")
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        theirs, _ = server.accept()
        with ours, theirs:
            before = machine.bytes_sent()
            ours.sendall(b"x" * 4321)
            theirs.recv(4321, socket.MSG_WAITALL)
            assert machine.bytes_sent() - before == 4321
