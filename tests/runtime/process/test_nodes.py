"""Several machines: a launcher on each, which meet before anything starts; with two network namespaces as hosts."""

import os
import signal
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from runtime.config.machines import node_group
from runtime.config.order import NodeGroup
from runtime.config.resolve import from_arguments, resolve
from runtime.errors import ConfigurationError, LaunchError
from runtime.run_files import read_result
from runtime.supervision.node_link import NodeLink
from runtime.supervision.preflight import code_files, find_place, unlike
from tests.fakes.nodes import PRINT, Node, Start, free_port

pytestmark = pytest.mark.multiprocess

TRAIN = Path(__file__).with_name("resumable.py.txt").read_text()


def _weights(node: Node) -> list[Any]:
    import torch

    return list(torch.load(node.directory / "weights.pt", weights_only=True))


def _two(start: Start, hosts: list[list[str]], backend: str, *, mode: str, restarts: int = 0) -> tuple[Node, Node]:
    options = ["--main_process_ip", "10.77.0.1", "--rdzv_backend", backend, "--max_restarts", str(restarts)]
    options += ["--rdzv_conf", "timeout=60"]
    return (
        start(0, *options, script=TRAIN, arguments=(mode, "."), prefix=hosts[0]),
        start(1, *options, script=TRAIN, arguments=(mode, "."), prefix=hosts[1]),
    )


@pytest.mark.alone
def test_two_hosts_train_together_and_a_killed_worker_of_one_resumes_both(start: Start, hosts: list[list[str]]) -> None:
    calm = _two(start, hosts, "c10d", mode="calm")
    for node in calm:
        code, output = node.end()
        assert code == 0, output
        assert "trained to step 18" in output
    killed = _two(start, hosts, "static", mode="killed", restarts=2)
    outputs = []
    for rank, node in enumerate(killed):
        code, output = node.end()
        assert code == 0, output
        result = read_result(node.layout)
        assert result is not None
        assert (result.state, result.attempts, result.survivors) == ("succeeded", 2, ())
        assert node.layout.ranks_with_output() == [rank]
        outputs.append(output)
    checkpoint = killed[0].layout.checkpoints / "checkpoint_1"
    assert all(f"[rank{rank}] resume from {checkpoint}" in output for rank, output in enumerate(outputs))
    assert "rank 1: signal 9 (SIGKILL)" in outputs[1]
    wanted, got = (_weights(pair[0]) for pair in (calm, killed))
    assert all(bool((a == b).all()) for a, b in zip(wanted, got, strict=True))


def test_nodes_on_one_machine_meet_whoever_is_first(start: Start) -> None:
    options = ("--main_process_ip", "127.0.0.1", "--main_process_port", str(free_port()))
    late = start(1, *options)
    ends = [start(0, *options).end(), late.end()]
    assert [code for code, _ in ends] == [0, 0], ends
    assert "[rank0] begun 0 2" in ends[0][1]
    assert "[rank1] begun 1 2" in ends[1][1]
    assert "1 process on node 1 of 2" in ends[1][1]


def test_other_code_is_named_and_nothing_starts(start: Start) -> None:
    options = ("--main_process_ip", "127.0.0.1", "--main_process_port", str(free_port()))
    for node in (start(0, *options), start(1, *options, script=PRINT + "# other\n")):
        code, output = node.end()
        assert code == 1
        assert "train.py differs between node 0 and node 1" in output
        assert "begun" not in output
        assert not list(node.layout.logs.glob("rank*"))


@pytest.mark.parametrize(("rank", "missing"), [(0, "node 1"), (1, "node 0")])
def test_a_node_that_does_not_come_is_named(start: Start, rank: int, missing: str) -> None:
    options = ("--main_process_ip", "127.0.0.1", "--main_process_port", str(free_port()), "--rdzv_conf", "timeout=1")
    code, output = start(rank, *options).end()
    assert code == 1
    assert f"{missing} did not come within 1 s" in output
    assert "begun" not in output


def test_ctrl_c_while_waiting_for_the_others_ends_at_once(start: Start, until: Any) -> None:
    node = start(0, "--main_process_ip", "127.0.0.1", "--main_process_port", str(free_port()))
    until(lambda: list(node.directory.glob("forerun-runs/*/heartbeat.json")), "the run directory")
    node.process.send_signal(signal.SIGINT)
    code, output = node.end()
    assert "told to stop by SIGINT" in output
    assert code == 130


def test_a_failure_on_one_node_ends_the_other_and_names_the_first(start: Start) -> None:
    script = (
        "import os, sys, time\n"
        "if os.environ['RANK'] == '1': sys.exit(7)\n"
        "time.sleep(600)\n"  # no collective would ever tell this rank
    )
    options = ("--main_process_ip", "127.0.0.1", "--main_process_port", str(free_port()))
    nodes = [start(rank, *options, script=script) for rank in (0, 1)]
    (code0, output0), (code1, output1) = (node.end() for node in nodes)
    assert code1 == 7, output1
    assert code0 != 0
    assert "node 1: rank 1: exit 7" in output0


def test_a_launcher_that_vanishes_ends_the_other(start: Start, until: Any) -> None:
    options = ("--main_process_ip", "127.0.0.1", "--main_process_port", str(free_port()))
    nodes = [start(rank, *options, script="import time\nprint('here')\ntime.sleep(600)\n") for rank in (0, 1)]
    for rank, node in enumerate(nodes):
        until(lambda n=node, r=rank: list(n.directory.glob(f"forerun-runs/*/logs/rank{r}.stdout.log")), "output")
    nodes[1].process.send_signal(signal.SIGKILL)
    code, output = nodes[0].end()
    assert code != 0
    assert "node 1: its launcher is gone" in output


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--machine_rank", "2"), "num_machines 2"),
        (("--main_process_ip", "no.such.host.invalid"), "is no address that this machine knows"),
        (("--main_process_ip", "203.0.113.7"), "machine_rank is 0, but 203.0.113.7 is no address of this machine"),
        (("--num_processes", "3"), "a number of processes that the number of machines divides"),
        (("--rdzv_conf", "timeout=soon"), "timeout 'soon' is no number of seconds"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_starts(start: Start, options: tuple[str, ...], said: str) -> None:
    given = ("--main_process_ip", "127.0.0.1") if "--main_process_ip" not in options else ()
    node = start(0, *given, *options)
    code, output = node.end()
    assert code == 2
    assert said in output
    assert not list(node.directory.glob("forerun-runs/*"))


def test_all_that_is_missing_is_named_at_once() -> None:
    with pytest.raises(ConfigurationError) as caught:
        node_group(resolve([from_arguments({"num_machines": 2})]))
    for name in ("num_processes", "main_process_ip", "machine_rank"):
        assert f"{name} is missing" in str(caught.value)
    assert node_group(resolve([from_arguments({"main_process_ip": "10.0.0.1"})])) is None


def test_the_port_has_a_default_and_the_deadline_comes_from_the_settings() -> None:
    given = {"num_machines": 2, "machine_rank": 1, "num_processes": 4, "main_process_ip": "a"}
    group = node_group(resolve([from_arguments({**given, "rdzv_conf": "timeout=9,read_timeout=3"})]))
    assert group is not None
    assert (group.port, group.deadline_s, group.settings, group.backend) == (
        29500,
        9.0,
        {"read_timeout": "3"},
        "static",
    )


def test_a_host_name_that_means_loopback_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.1.1", 29500))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: answer)
    for rank in (0, 1):
        with pytest.raises(ConfigurationError, match=r"'trainer1' resolves to 127.0.1.1, which other machines cannot"):
            find_place(NodeGroup(num_nodes=2, rank=rank, address="trainer1", port=29500))


def test_a_busy_port_is_named() -> None:
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        port = busy.getsockname()[1]
        with pytest.raises(ConfigurationError, match=f"port {port} is in use"):
            find_place(NodeGroup(num_nodes=2, rank=0, address="127.0.0.1", port=port))
        assert find_place(NodeGroup(num_nodes=2, rank=1, address="127.0.0.1", port=port)).interface == "lo"


def _meet(groups: list[NodeGroup], *, resume: str | None = None) -> list[Any]:
    """All at once, each in a thread; what each got or how it was refused."""
    results: list[Any] = [None] * len(groups)
    links = [NodeLink(group) for group in groups]

    def go(index: int) -> None:
        try:
            given = resume if groups[index].rank == 0 else "not asked for"
            results[index] = links[index].meet("127.0.0.1", attempt=1, resume=given, going=lambda: True)
        except LaunchError as error:
            results[index] = error

    threads = [threading.Thread(target=go, args=(index,)) for index in range(len(groups))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30.0)
        assert not thread.is_alive()
    for link in links:
        link.close()
    return results


def _groups(port: int, ranks: tuple[int, ...], num_nodes: int = 3, **facts: Any) -> list[NodeGroup]:
    common = {"num_nodes": num_nodes, "address": "127.0.0.1", "port": port, "deadline_s": 2.0, "facts": facts}
    return [NodeGroup(rank=rank, **common) for rank in ranks]


def test_all_nodes_learn_from_where_node_0_goes_on() -> None:
    assert _meet(_groups(free_port(), (0, 1, 2)), resume="/runs/checkpoint_4") == ["/runs/checkpoint_4"] * 3


def test_every_node_is_told_who_is_missing() -> None:
    for result in _meet(_groups(free_port(), (0, 2))):
        assert "node 1 did not come within 2 s" in str(result)


def test_two_machines_of_one_rank_are_named() -> None:
    results = _meet(_groups(free_port(), (0, 1, 1)))
    assert all("two machines have machine_rank 1; one of them is 127.0.0.1" in str(result) for result in results)


def test_strangers_on_the_port_are_sent_away(until: Any) -> None:
    port = free_port()

    first, second = (group.model_copy(update={"deadline_s": 30.0}) for group in _groups(port, (0, 1), num_nodes=2))
    results: list[Any] = []
    waiting = threading.Thread(target=lambda: results.extend(_meet([first], resume="x")))
    waiting.start()
    for hello in (b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 99 + b"\n", b'{"format": "other"}\n', b"[" * 9999 + b"\n", b""):
        answer = until(lambda h=hello: _ask(port, h), "an answer to a stranger")
        assert answer == "sent away"
    assert _meet([second]) == ["x"]
    waiting.join(30.0)
    assert results == ["x"]


def _ask(port: int, hello: bytes) -> str:
    """What a stranger gets; empty while nobody listens."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=10.0) as peer:
            peer.sendall(hello)
            peer.shutdown(socket.SHUT_WR)
            return "an answer" if peer.recv(1) else "sent away"
    except ConnectionResetError:
        return "sent away"
    except ConnectionRefusedError:
        return ""


def test_differences_are_told_in_words() -> None:
    first = {
        "node": 0,
        "processes": 1,
        "versions": {"torch": "2.13", "python": "3.11"},
        "code": {"a.py": "1", "b.py": "2"},
    }
    other = {
        "node": 3,
        "processes": 2,
        "versions": {"torch": "2.12", "python": "3.11"},
        "code": {"a.py": "9", "c.py": "3"},
    }
    assert unlike(first, other) == [
        "node 3 has processes 2, node 0 has 1",
        "node 3 has torch 2.12, node 0 has 2.13",
        "a.py differs between node 0 and node 3",
        "b.py is missing on node 3",
        "c.py of node 3 is missing on node 0",
    ]
    assert unlike(first, first) == []


def test_code_is_what_is_imported_not_what_runs_leave(tmp_path: Path) -> None:
    for name in ("train.py", "pkg/a.py", "runs/copy.py", ".git/x.py", "__pycache__/y.py", "env/lib/z.py", "data.csv"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("1")
    (tmp_path / "env" / "pyvenv.cfg").touch()
    assert sorted(code_files(tmp_path, skipped=tmp_path / "runs")) == ["pkg/a.py", "train.py"]
    (tmp_path / os.fsdecode(b"a\xe9.py")).write_text("")  # facts go on record, which holds no such bytes
    (odd, *_) = sorted(code_files(tmp_path, skipped=tmp_path / "runs"))
    assert odd == "a\\udce9.py"
