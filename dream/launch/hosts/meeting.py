"""Who has come to a job of several hosts, until all have or one cannot be taken. Pure."""

from __future__ import annotations

from typing import Any, final

from dream.launch.hosts.nodes import Node, absent, disagreement, numbers


@final
class Meeting:
    """nnodes: as node 0 was given it. seconds: how long the others have to come."""

    def __init__(self, nnodes: int, seconds: float) -> None:
        self.nnodes = nnodes
        self.nodes: dict[int, Node] = {}
        self.refusal = ""
        """Why nobody can begin, for every host; empty while there is no reason."""

        self.late = False
        """Whether the refusal is that hosts did not come."""

        self._seconds = seconds
        self._strangers: list[str] = []

    @property
    def complete(self) -> bool:
        return not self.refusal and len(self.nodes) == self.nnodes

    @property
    def missing(self) -> str:
        return numbers(set(range(self.nnodes)) - self.nodes.keys())

    def join(self, content: Any) -> Node | None:
        """The host that says this of itself; None where it cannot be taken: then either all have
        been refused, or the job runs and it came too late. One that comes back is as it was."""
        try:
            node = Node.read(content)
        except (KeyError, TypeError, ValueError):
            self.refuse(
                "A host's launcher speaks otherwise than node 0's. Received: "
                f"{str(content)[:200]}. Install the same version of dream on every host."
            )
            return None
        before = self.nodes.get(node.number)
        if before is not None and before.launcher == node.launcher:
            return node
        if not self.complete:
            self.refuse(disagreement([*self.nodes.values(), node]))
        if self.refusal or self.complete:
            return None
        self.nodes[node.number] = node
        return node

    def leave(self, number: int) -> None:
        """Before all had come: it may be started again, in another way."""
        if not self.complete:
            self.nodes.pop(number, None)

    def stranger(self, address: str) -> bool:
        """One came from there without the token, which is no reason to end for the others.
        Whether it is the first time."""
        first = address not in self._strangers and len(self._strangers) < 8
        if first:
            self._strangers.append(address)
        return first

    def refuse(self, reason: str, *, late: bool = False) -> None:
        if reason and not self.refusal and not self.complete:
            self.refusal, self.late = reason, late

    def time_is_up(self, where: str) -> None:
        """where: what was waited at."""
        strangers = ", ".join(self._strangers)
        knocked = f"Without the token of node 0, one came from: {strangers}. " if strangers else ""
        detail = f"Received at {where}. {knocked}"
        self.refuse(absent(self.missing, self.nnodes, self._seconds, detail), late=True)
