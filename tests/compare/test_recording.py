"""What a rank measures and leaves behind, and what every rank starts from."""

from itertools import count

import numpy as np
import pytest
from compare_made import MIRRORED, finished

from dream.compare import digits, meter, record
from dream.compare.record import RankRecord


@pytest.fixture
def clock(monkeypatch):
    """A second between any two looks at the clock."""
    seconds = count(10.0)
    monkeypatch.setattr(meter, "perf_counter", lambda: next(seconds))


@pytest.mark.usefixtures("clock")
def test_the_first_epoch_is_the_warm_up():
    watch = meter.Meter()
    watch.step(64)  # at 10
    watch.step(64)  # not looked at
    watch.epoch(2.0, 128)  # at 11
    watch.step(64)
    watch.epoch(1.0, 128)  # at 12
    watch.epoch(0.5, 128)  # at 13
    assert watch.samples_per_second == 128.0
    assert watch.losses == [2.0, 1.0, 0.5]
    assert watch.first_step > 1e9


@pytest.mark.usefixtures("clock")
def test_in_a_single_epoch_it_is_the_first_step():
    watch = meter.Meter()
    watch.step(64)
    watch.epoch(2.0, 200)
    assert watch.samples_per_second == 136.0


def test_a_record_comes_back_as_it_was(tmp_path):
    outcome = finished(MIRRORED)
    record.write(tmp_path, outcome.records[1], outcome.parameters[1])
    assert record.read(tmp_path, 1) == outcome.records[1]
    assert isinstance(record.read(tmp_path, 1), RankRecord)
    back = record.read_parameters(tmp_path, 1)
    assert record.digest(back) == outcome.records[1].digest
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rank1.json", "rank1.npz"]
    with pytest.raises(FileNotFoundError):
        record.read(tmp_path, 0)


def test_the_digest_sees_a_bit_a_shape_a_dtype_and_a_name():
    base = {"a": np.ones((2, 3), np.float32), "b": np.zeros(3, np.float32)}
    others = [
        base | {"b": np.array([0.0, -0.0, 0.0], np.float32)},
        base | {"a": np.ones((3, 2), np.float32)},
        base | {"b": np.zeros(3, np.int32)},
        {"a": base["a"], "c": base["b"]},
    ]
    assert record.digest(dict(reversed(base.items()))) == record.digest(base)
    assert len({record.digest(each) for each in [base, *others]}) == 5


def test_a_transposed_array_counts_as_what_it_shows():
    kernel = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert record.digest({"a": kernel}) == record.digest({"a": np.asfortranarray(kernel)})


def test_memory_is_in_bytes():
    assert 10**7 < record.peak_bytes() < 10**11


def test_the_digits_are_the_same_each_time_and_their_last_batch_uneven():
    ours, again = digits.load(), digits.load()
    assert (ours.x.shape, ours.x_test.shape) == ((1413, 64), (384, 64))
    assert ours.x.dtype == np.float32
    assert (ours.x.min(), ours.x.max()) == (0, 1)
    assert set(ours.y) == set(ours.y_test) == set(range(10))
    assert (ours.x == again.x).all()
    assert all(1413 % 64 % replicas for replicas in (2, 3, 4))


def test_first_weights_hang_on_the_seed_alone():
    ours, again, other = (digits.first_weights(seed) for seed in (0, 0, 1))
    assert {name: value.shape for name, value in ours.items()} == {
        "hidden.kernel": (64, 32),
        "hidden.bias": (32,),
        "output.kernel": (32, 10),
        "output.bias": (10,),
    }
    assert record.digest(ours) == record.digest(again) != record.digest(other)
