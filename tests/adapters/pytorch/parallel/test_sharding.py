"""Models in shards, whichever way: numbers of one device, and what cannot be is refused."""

from __future__ import annotations

import pytest
import sharding_keras
from sharding_cases import RANKS, figures, found

import dream

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("ranks", RANKS)
def test_a_transformer_is_trained_as_on_one_device(ranks: int) -> None:
    """The key's bias has a gradient of rounding noise, which Adam amplifies under any order of
    summation; the contract's own law judges that."""
    for what, apart in figures("exact", ranks):
        noisy = "adamw" in what
        judged = {n: v for n, v in apart.items() if not (noisy and n.endswith("key.bias"))}
        assert max(judged.values()) <= 1e-6, (what, apart)


@pytest.mark.parametrize("ranks", RANKS)
def test_clipping_is_of_the_global_gradient(ranks: int) -> None:
    for what, case in figures("clipped", ranks):
        assert max(case["apart"].values()) <= 1e-6, (what, case["apart"])
        assert case["norms"] == pytest.approx(case["right"], rel=1e-5), what


def test_no_rank_ever_has_the_whole_of_a_model_made_on_meta() -> None:
    for what, case in figures("on_meta"):
        assert max(case["apart"].values()) == 0.0, what
        layer = 64 * 512 * 4
        assert case["own"] <= case["largest"] <= case["own"] + 3 * layer, case
        assert case["largest"] < 0.7 * case["whole"], case
        assert case["after"] == "nothing was raised", case


@pytest.mark.parametrize("ranks", RANKS)
def test_copies_are_split_too(ranks: int) -> None:
    for what, case in figures("copies", ranks):
        assert case["output"] <= 1e-6, what
        assert max(case["state"].values()) <= 1e-6, what
        assert max(case["back"].values()) == 0.0, what
        assert case["kind"] == "Reader"
        if "tensor" in what:
            assert case["pickled"].startswith("ConfigurationError: A split model cannot be pickled")
        else:
            assert case["pickled"] == "nothing was raised"


@pytest.mark.parametrize("when", ["inside", "after"])
def test_a_part_is_never_saved_as_a_whole(when: str) -> None:
    """In the block, and after it, where torch.save is torch's own again. What is in shards is whole
    in its file (`test_saved_shards`)."""
    for what, both in figures("saved"):
        case = both[when]
        assert case["whole"] == "nothing was raised", case
        for kept, words in SAID.items():
            if "pipeline" in what or (kept == "module" and "tensor" in what):
                assert case[kept].startswith("ConfigurationError: "), (what, kept, case[kept])
                assert any(word in case[kept] for word in words), (what, kept, case[kept])
            else:
                assert case[kept] == "nothing was raised", (what, kept, case[kept])


SAID = {
    "model": ("Another rank holds the tensor",), "nested": ("Another rank holds the tensor",),
    "state": ("the state of its own stages",),
    "module": ("A split model cannot be pickled", "Another rank holds"),
}  # fmt: skip


def test_what_was_made_before_the_block() -> None:
    for what, case in figures("prepared"):
        assert max(case["apart"].values()) <= 1e-6, what
        assert case["late"].startswith("ConfigurationError: An optimizer that has already stepped")


@pytest.mark.parametrize("ranks", RANKS)
def test_a_penalty_on_parts_gives_the_numbers_of_one_device(ranks: int) -> None:
    for what, case in figures("penalties", ranks):
        assert max(case.values()) <= 1e-6, (what, case)


def test_a_penalty_counts_once_where_a_loss_is_weighed() -> None:
    for rank in found(2):
        for what, case in rank["weighed_penalties"]["apart"].items():
            assert max(case.values()) <= 1e-6, (what, case)
        for what, said in rank["weighed_penalties"]["weighed"].items():
            assert said.startswith("Unsupported: A loss that is weighed"), (what, said)
            assert "Weigh the loss first" in said
        assert not rank["weighed_penalties"]["looks on"]  # once the loop after the block has ended


REFUSALS = {
    "convolution": ("Unsupported", "0, a Conv1d", "'sharded'"),
    "recurrent": ("Unsupported", "memory, a LSTM", "split='pipeline'"),
    "odd": ("Unsupported", "0, 5 columns over 2 ranks"),
    "renormed": ("Unsupported", "words with max_norm=1.0", "'mirrored'"),
    "tied": ("Unsupported", "head in plan="),
    "heads": ("Unsupported", "1 heads over 2 ranks", "blocks.0.attend.query"),
    "packed": ("Unsupported", "attend.out_proj", "packed", "'sharded'"),
    "nobody": ("ConfigurationError", "'fc*'"),
    "word": ("ConfigurationError", "'columns'", "'column'"),
    "whole steps": ("Unsupported", "Adafactor", "zero=2"),
    "sparse rows": ("Unsupported", "sparse gradient of shape (4, 2)", "mirrored"),
    "sparse copies": ("Unsupported", "sparse gradient of shape (4, 2)", "'mirrored'"),
    "twice": ("Unsupported", "create_graph=True", "'mirrored'"),
    "each sample": ("Unsupported", "inside torch.func", "'mirrored'"),
    "some": ("Unsupported", "backward(inputs=...)", "'mirrored'"),
    "half": ("ConfigurationError", "0 of Sequential"),
    "other samples": ("Desynchronized", "the same samples"),
    "one sample": ("ConfigurationError", "Sequential", "drop_last=True"),
    "spectral": ("Unsupported", "_SpectralNorm", "'mirrored'"),
    "bare": ("Unsupported", "_Bare with scale", "reset_parameters"),
}


@pytest.mark.parametrize(
    ("job", "ranks"),
    [("refusals", 2), pytest.param("in_one_process", 1, marks=pytest.mark.exhaustive)],
)
def test_a_keras_model_on_torch_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, job: str, ranks: int
) -> None:
    """Made in the block, made before it and prepared, or trained in it."""
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    run = getattr(sharding_keras, job)
    for rank in dream.launch(run, n=ranks, framework="torch", timeout=600):
        for what, said in rank.items():
            assert said.startswith("Unsupported: "), (what, said)
            assert "Keras" in said, (what, said)
            assert "mirrored" in said, (what, said)


@pytest.mark.parametrize("what", REFUSALS)
def test_what_cannot_be_is_refused_by_name(what: str) -> None:
    kind, *words = REFUSALS[what]
    for rank in found(2):
        said = rank["refusals"][what]
        assert said.startswith(f"{kind}: "), said
        for word in words:
            assert word in said, said
