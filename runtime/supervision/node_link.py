"""The launchers of several machines speak with each other: they meet before each attempt, and tell how it ends.

Node 0 listens on the main port until all have come; the engine's own store takes the port afterwards. The connections
stay, so that a node that fails, stops or vanishes is known everywhere at once.
"""

import contextlib
import json
import select
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ..config.order import NodeGroup
from ..errors import LaunchError
from .preflight import unlike

_FORMAT = "forerun-nodes/1"
_PAUSE_S = 0.1
_ANSWER_S = 5.0
_MOST_BYTES = 8 * 2**20
_NAMED = 5


@dataclass(frozen=True)
class Word:
    """What another node says of its attempt: state failed, cancelled, stopped_at_limit, succeeded or gone."""

    node: int
    state: str
    reason: str


@dataclass(eq=False)
class _Peer:
    node: int
    connection: socket.socket
    buffer: bytearray = field(default_factory=bytearray)
    ended: bool = False

    def send(self, message: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):  # who is gone is seen when it is listened to
            self.connection.settimeout(_ANSWER_S)
            self.connection.sendall(json.dumps(message).encode() + b"\n")

    def receive(self, timeout_s: float) -> dict[str, Any] | None:
        """The next message; None if none came in time.

        Raises:
            ConnectionError: the connection has ended, or what came is none of ours.
        """
        end = time.monotonic() + timeout_s
        while b"\n" not in self.buffer:
            left_s = max(0.0, end - time.monotonic())
            if not select.select([self.connection], [], [], left_s)[0]:
                return None
            try:
                piece = self.connection.recv(65536)
            except OSError as error:
                raise ConnectionError(str(error)) from error
            if not piece or len(self.buffer) > _MOST_BYTES:
                raise ConnectionError("closed")
            self.buffer += piece
        line, _, rest = bytes(self.buffer).partition(b"\n")
        self.buffer[:] = rest
        try:
            message = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ConnectionError("no message of forerun") from error
        if not isinstance(message, dict) or message.get("format") != _FORMAT:
            raise ConnectionError("no message of forerun")
        return message


class NodeLink:
    """This node's connections: node 0 has one to each other node, they have one to node 0."""

    def __init__(self, group: NodeGroup) -> None:
        self._group = group
        self._peers: list[_Peer] = []

    def meet(self, address: str, *, attempt: int, resume: str | None, going: Callable[[], bool]) -> str | None:
        """Wait for all nodes, compare them, and learn from where the attempt goes on.

        Args:
            resume: what node 0 has found; the others' is not asked for.
            going: False ends the waiting.

        Raises:
            LaunchError: nodes are missing at the deadline, or differ; they are named.
        """
        self.close()
        facts = {"format": _FORMAT, "node": self._group.rank, "num_nodes": self._group.num_nodes}
        facts |= {"attempt": attempt, "backend": self._group.backend, **self._group.facts}
        end = time.monotonic() + self._group.deadline_s
        if self._group.rank == 0:
            return self._gather(address, facts, resume, end, going)
        return self._join(address, facts, end, going)

    def word(self) -> Word | None:
        """What another node has said since, if something: of its failure or stop, or that it is gone."""
        for peer in self._peers:
            if peer.ended:
                continue
            try:
                message = peer.receive(0.0)
            except ConnectionError as error:
                peer.ended = True
                return Word(peer.node, "gone", f"its launcher is gone ({error})")
            if message is not None:
                peer.ended = True
                state, node = str(message.get("state")), int(message.get("of", peer.node))
                if state != "succeeded":
                    return Word(node, state, str(message.get("reason")))
        return None

    def tell(self, state: str, reason: str, *, of: int | None = None) -> None:
        """Say how this attempt ends here (or has ended on node `of`)."""
        node = self._group.rank if of is None else of
        for peer in self._peers:
            if peer.node != node:
                peer.send({"format": _FORMAT, "state": state, "reason": reason, "of": node})

    def close(self) -> None:
        for peer in self._peers:
            peer.connection.close()
        self._peers = []

    def _gather(
        self, address: str, facts: dict[str, Any], resume: str | None, end: float, going: Callable[[], bool]
    ) -> str | None:
        come: dict[int, dict[str, Any]] = {0: facts}
        problems: list[str] = []
        with _listening(address, self._group.port) as listener:
            while len(come) < self._group.num_nodes and time.monotonic() < end and going():
                if not select.select([listener], [], [], _PAUSE_S)[0]:
                    continue
                connection, origin = listener.accept()
                problems += self._admit(connection, str(origin[0]), come)
        for node in sorted(come):
            problems += unlike(facts, come[node])
        if missing := [str(node) for node in range(self._group.num_nodes) if node not in come]:
            problems.append(_did_not_come(missing, self._group.deadline_s))
        answer = {"format": _FORMAT, "problems": problems, "resume": resume}
        for peer in self._peers:
            peer.send(answer)
        if problems:
            self.close()
            raise _refused(problems)
        return resume

    def _admit(self, connection: socket.socket, origin: str, come: dict[int, dict[str, Any]]) -> list[str]:
        """Take in a node; a stranger is sent away."""
        _keep_alive(connection)
        peer = _Peer(-1, connection)
        try:
            hello = peer.receive(_ANSWER_S)
        except ConnectionError:
            hello = None
        node = hello.get("node") if hello else None
        if hello is None or not isinstance(node, int):
            connection.close()
            return []
        peer.node = node
        peer.send({"format": _FORMAT, "seen": True})
        self._peers.append(peer)
        if not 0 <= node < self._group.num_nodes:
            return [f"{origin} has machine_rank {node}, allowed: 0 to {self._group.num_nodes - 1}"]
        if node in come:
            return [f"two machines have machine_rank {node}; one of them is {origin}"]
        come[node] = hello
        return []

    def _join(self, address: str, facts: dict[str, Any], end: float, going: Callable[[], bool]) -> str | None:
        seen = "nothing answers there"
        while time.monotonic() < end and going():
            try:
                connection = socket.create_connection((address, self._group.port), timeout=_ANSWER_S)
            except OSError as error:
                seen = str(error.strerror or error)
                time.sleep(_PAUSE_S)
                continue
            _keep_alive(connection)
            peer = _Peer(0, connection)
            peer.send(facts)
            try:
                if peer.receive(_ANSWER_S) is None:
                    raise ConnectionError("what answers there is no launcher of forerun")
                self._peers = [peer]
                return self._verdict(peer, end, going)
            except ConnectionError as error:
                seen = str(error)
                self.close()
                connection.close()
                time.sleep(_PAUSE_S)
        raise _refused([f"{_did_not_come(['0'], self._group.deadline_s)} ({address}:{self._group.port}: {seen})"])

    def _verdict(self, peer: _Peer, end: float, going: Callable[[], bool]) -> str | None:
        while time.monotonic() < end + _ANSWER_S and going():
            message = peer.receive(_PAUSE_S)
            if message is None:
                continue
            if problems := [str(problem) for problem in message.get("problems") or ()]:
                raise _refused(problems)
            resume = message.get("resume")
            return None if resume is None else str(resume)
        raise _refused(["node 0 came, but not all others did"])


@contextlib.contextmanager
def _listening(address: str, port: int) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((address, port))
        except OSError as error:
            raise LaunchError(
                f"node 0 cannot listen on {address}:{port}: {error.strerror}",
                allowed="a port that is free on node 0",
                next_step="give another --main_process_port on every machine",
            ) from error
        listener.listen(128)
        yield listener


def _keep_alive(connection: socket.socket) -> None:
    """A machine that vanishes is noticed after half a minute."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 4)):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)


def _did_not_come(nodes: list[str], deadline_s: float) -> str:
    named = ", ".join(nodes[:_NAMED]) + (f" and {len(nodes) - _NAMED} more" if len(nodes) > _NAMED else "")
    return f"node{'s' * (len(nodes) > 1)} {named} did not come within {deadline_s:g} s"


def _refused(problems: list[str]) -> LaunchError:
    shown = problems[:20] + ([f"and {len(problems) - 20} more"] if len(problems) > 20 else [])
    return LaunchError(
        f"the nodes do not come together: {'; '.join(shown)}",
        allowed="the same command, code and versions on every machine, each with its own machine_rank",
        next_step="put the nodes that are named right, and start all of them again",
    )
