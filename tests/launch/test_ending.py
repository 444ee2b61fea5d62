"""Who is named for the end of a job, and how; where a real collective fails of it too."""

from __future__ import annotations

import signal
from importlib.util import find_spec
from pathlib import Path

import pytest
from launch_scripts import outcome

from dream.launch.child import looks_like_a_victim
from dream.launch.ending import Blame, Ending, describe, find_cause, first_left
from dream.parameter_server.protocol import server_gone

OWN = Ending(1, 1, 10.0, text="ValueError: mine")
VICTIM = Ending(0, 1, 9.0, victim=True, text="ConnectionResetError")
KILLED = Ending(2, -signal.SIGKILL, 11.0)
LEFT = Ending(3, 0, 8.5)
SAID = (
    "dream._errors.Desynchronized: Rank 1 did not come to all_reduce() within 6.5 s. Received: "
    "rank 1 is stopped. Make the same calls on every rank."
)
WAITED = Ending(0, 1, 9.0, text=f"Traceback\n{SAID}\n")
ABSENT = Ending(
    1, None, 9.0, victim=True,
    absent="did not come to all_reduce() within 6.5 s: rank 1 is stopped",
)  # fmt: skip


@pytest.mark.parametrize(
    ("endings", "first", "victim"),
    [
        ([OWN], OWN, None),
        ([VICTIM, OWN], OWN, None),
        ([VICTIM, KILLED], KILLED, None),
        ([KILLED, OWN], OWN, None),
        ([Ending(1, None, 10.0), KILLED], Ending(1, None, 10.0), None),
        ([VICTIM], VICTIM, None),
        ([VICTIM, Ending(1, 1, 8.9, victim=True)], Ending(1, 1, 8.9, victim=True), None),
        ([VICTIM, LEFT], LEFT, VICTIM),
        ([OWN, LEFT], OWN, None),
        ([VICTIM, Ending(3, 0, 9.02)], Ending(3, 0, 9.02), VICTIM),
        ([VICTIM, Ending(3, 0, 60.0)], VICTIM, None),
        ([WAITED], ABSENT, WAITED),
        ([WAITED, LEFT], LEFT, WAITED),
        ([WAITED, KILLED], KILLED, None),
        ([WAITED, OWN], OWN, None),
    ],
)
def test_the_first_cause(endings: list[Ending], first: Ending, victim: Ending | None) -> None:
    assert find_cause(endings) == Blame(first, victim)
    assert find_cause(endings[::-1]) == Blame(first, victim)


def test_nobody_failed() -> None:
    assert find_cause([]) is None
    assert find_cause([LEFT]) is None
    assert first_left([VICTIM]) is None


def test_the_message_names_rank_exit_and_traceback() -> None:
    message = describe(Blame(OWN), 2.0, [2, 0])
    assert message.startswith("Rank 1 failed with exit code 1 after 2.0 s. Ended with it: ranks 0,")
    assert message.endswith("\n  ValueError: mine")


def test_the_message_names_who_did_not_come_and_who_waited() -> None:
    message = describe(Blame(ABSENT, WAITED), 2.0, [1])
    assert message.startswith("Rank 1 did not come to all_reduce() within 6.5 s: rank 1 is stopped")
    assert "Rank 0 waited for it, and failed with exit code 1 after 2.0 s." in message


def test_a_server_that_is_waited_for_in_vain_is_named() -> None:
    text = str(server_gone(2))
    cause = find_cause([Ending(0, 1, 9.0, victim=True, text=f"WorkerFailed: {text}")])
    assert cause is not None
    assert cause.first.rank == 2


def test_the_message_names_a_signal() -> None:
    assert "Rank 2 was killed by SIGKILL (signal 9, as" in describe(Blame(KILLED), 2.0, [])
    assert "by SIGSEGV (signal 11)" in describe(Blame(Ending(0, -11, 0.0)), 2.0, [])
    assert "by a signal (signal 40)" in describe(Blame(Ending(0, -40, 0.0)), 2.0, [])


def test_who_left_is_named_and_what_it_did_is_shown() -> None:
    message = describe(Blame(LEFT, VICTIM), 2.0, [])
    assert message.startswith("Rank 3 left with exit code 0")
    assert "Rank 0 then failed with exit code 1.\n  ConnectionResetError" in message


def test_who_left_early_may_have_branched_on_its_own_loss() -> None:
    for cause in (Blame(LEFT), Blame(LEFT, VICTIM)):
        assert "branch on a global value (`strategy.communicator.all_reduce`)" in describe(
            cause, 2.0, []
        )


def test_what_is_on_screen_is_not_quoted_again() -> None:
    message = describe(Blame(OWN), 2.0, [2, 0], shown={1})
    assert "mine" not in message
    assert message.endswith("Its last words are above.")
    assert "ValueError: mine" in describe(Blame(OWN), 2.0, [], shown={0})


def test_a_long_traceback_keeps_its_end() -> None:
    text = "\n".join(f"line {number}" for number in range(100))
    message = describe(Blame(Ending(0, 1, 0.0, text=text)), 1.0, [])
    assert "line 99" in message
    assert "line 10\n" not in message


class UnavailableError(Exception):
    """As TensorFlow's, which this suite does not import."""


def chained() -> BaseException:
    try:
        try:
            raise UnavailableError
        except UnavailableError as error:
            raise ValueError("the step failed") from error
    except ValueError as error:
        return error


@pytest.mark.parametrize(
    ("error", "victim"),
    [
        (ConnectionResetError("peer"), True),
        (BrokenPipeError(), True),
        (RuntimeError("[gloo/transport/tcp/pair.cc:553] Connection closed by peer"), True),
        (RuntimeError("Horovod has been shut down. This was caused by"), True),
        (UnavailableError(), True),
        (chained(), True),
        (ValueError("shapes differ"), False),
        (RuntimeError("out of memory"), False),
        (KeyError("peer"), False),
    ],
)
def test_what_a_victim_looks_like(error: BaseException, victim: bool) -> None:
    assert looks_like_a_victim(error, str(error)) is victim


TRAIN = """
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
x = torch.ones(3)
dist.all_reduce(x)
if rank == 1: {leave}
for _ in range(3): dist.all_reduce(x)
"""


@pytest.mark.slow
@pytest.mark.skipif(not find_spec("torch"), reason="torch is needed")
@pytest.mark.parametrize(
    ("leave", "codes"),
    [
        ("sys.exit(0)", (1, 134)),  # a torch process that leaves with its group open may abort
        ("os.kill(os.getpid(), signal.SIGKILL)", (137,)),
    ],
)
def test_torch(tmp_path: Path, leave: str, codes: tuple[int, ...]) -> None:
    end = outcome(tmp_path, TRAIN.format(leave=leave))
    assert end.cause is not None
    assert end.cause.first.rank == 1
    assert end.exit_code in codes
