"""The grid: which rows, in which order, and which names it refuses."""

import pytest

from dream import ConfigurationError
from dream.tools.compare import document
from dream.tools.compare.cells import KINDS, Cell, grid, scaled
from dream.tools.compare.settings import split_items


def rows(*args):
    return [(c.framework, c.strategy, c.processes, c.devices) for c in grid(*args)]


def test_single_comes_first_and_once_wherever_it_is_named():
    assert rows(["torch"], ["mirrored", "single"], 3) == [
        ("torch", "single", 1, 1),
        ("torch", "mirrored", 3, 1),
    ]
    assert rows(["torch"], ["horovod"], 2)[0] == ("torch", "single", 1, 1)


def test_tensorflow_has_a_row_for_mirrored_in_one_process():
    assert rows(["tensorflow"], ["mirrored"], 2) == [
        ("tensorflow", "single", 1, 1),
        ("tensorflow", "mirrored", 2, 1),
        ("tensorflow", "mirrored:devices=2", 1, 2),
    ]


def test_one_replica_has_no_devices_to_share_among():
    assert len(rows(["tensorflow"], ["mirrored"], 1)) == 2


def test_a_strategy_may_bring_its_devices():
    assert rows(["tensorflow"], ["mirrored:devices=4"], 2)[1] == (
        "tensorflow", "mirrored:devices=4", 1, 4,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("framework", "request_", "place", "title"),
    [
        ("torch", "sharded", (2, 1, 0), "sharded"),
        ("torch", "model_parallel", (2, 1, 0), "model_parallel"),
        ("torch", "model_parallel:split=layers", (1, 2, 0),
         "model_parallel:split=layers in 1 process"),
        ("tensorflow", "model_parallel:split=tensor", (2, 1, 0), "model_parallel:split=tensor"),
        ("tensorflow", "model_parallel", (1, 2, 0), "model_parallel in 1 process"),
        ("torch", "hybrid:data=2,model=2", (4, 1, 0), "hybrid:data=2,model=2"),
        ("torch", "data_parallel", (1, 2, 0), "data_parallel in 1 process"),
        ("torch", "parameter_server", (3, 1, 1), "parameter_server"),
        ("torch", "parameter_server:workers=1,servers=2", (3, 1, 2),
         "parameter_server:workers=1,servers=2"),
        ("torch", "local_sgd:every=4", (2, 1, 0), "local_sgd:every=4"),
    ],
)  # fmt: skip
def test_a_mesh_has_the_places_that_it_asks_for(framework, request_, place, title):
    _, cell = grid([framework], [request_], 2)
    assert (cell.processes, cell.devices, cell.servers) == place
    assert cell.title == title
    assert cell.replicas == (4 if "data=2" in request_ else 1 if "workers=1" in request_ else 2)


def test_what_runs_where_no_strategy_is_named():
    asked = [cell.name for cell in scaled(["torch"], [], [2])]
    assert asked[:3] == ["single", "mirrored", "horovod"]
    assert asked[-2:] == ["local_sgd", "parameter_server"]
    assert len(scaled(["keras-torch"], [], [2])) == 3, "what refuses Keras on torch is left out"
    assert len(scaled(["torch", "tensorflow"], ["mirrored"], [1, 2])) == 7


@pytest.mark.parametrize(
    ("strategy", "text", "sent"),
    [
        ("mirrored", "2N(P-1)/P", 150.0),
        ("sharded", "3N(P-1)/P", 225.0),
        ("sharded:zero=2", "2N(P-1)/P", 150.0),
        ("local_sgd", "2N(P-1)/P/8", 150 / 8),
        ("local_sgd:every=1", "2N(P-1)/P", 150.0),
        ("parameter_server", "N", 100.0),
        ("sharded:data=2", None, None),
        ("hybrid:split=tensor", None, None),
    ],
)
def test_what_is_sent_by_the_book(strategy, text, sent):
    found = document.sent_formula(Cell("torch", strategy, 4))
    assert (found and found.text) == text
    assert (found and found.sent(100, 4)) == sent


def test_names_given_twice_count_once():
    assert len(rows(["torch", "torch"], ["mirrored", "mirrored"], 2)) == 2


@pytest.mark.parametrize(
    ("cell", "reduction", "title"),
    [
        (Cell("torch", "single", 1), "", "single"),
        (Cell("torch", "mirrored", 2), "auto", "mirrored"),
        (
            Cell("keras-torch", "mirrored:reduction=horovod", 2),
            "horovod",
            "mirrored:reduction=horovod",
        ),
        (Cell("tensorflow", "multi_worker_mirrored", 2), "auto", "multi_worker_mirrored"),
        (Cell("tensorflow", "horovod", 2), "horovod", "horovod"),
        (Cell("tensorflow", "mirrored:devices=3", 1, 3), "in process", "mirrored in 1 process"),
    ],
)
def test_what_a_row_says_of_itself(cell, reduction, title):
    assert (cell.reduction, cell.title) == (reduction, title)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ((["torhc"], ["single"], 2), ("framework", "'torhc'", "keras-torch", "mean 'torch'")),
        ((["torch"], ["mirored"], 2), ("strategy", "'mirored'", "mean 'mirrored'")),
        ((["torch"], ["mirrored:buckets=1"], 2), ("option", "'buckets'", "bucket_mb")),
        ((["torch"], ["mirrored"], 0), ("n=0", "-n 2")),
        ((["torch"], ["mirrored"], -3), ("n=-3",)),
    ],
)
def test_bad_names_and_numbers(args, words):
    with pytest.raises(ConfigurationError) as caught:
        grid(*args)
    for word in words:
        assert word in str(caught.value)


def test_lists_are_split_but_options_stay_with_their_strategy():
    assert split_items("torch, keras-torch") == ["torch", "keras-torch"]
    assert split_items("single,mirrored:reduction=gloo,bucket_mb=5,horovod") == [
        "single",
        "mirrored:reduction=gloo,bucket_mb=5",
        "horovod",
    ]
    assert split_items("") == []


def test_every_kind_names_what_to_install():
    assert all(kind.install.startswith("pip install") for kind in KINDS.values())
