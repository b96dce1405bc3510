"""DeepSpeed's hostfile and filters: what they mean for a launch, and what is refused with its line."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runtime.config.choices import choose
from runtime.config.hostfile import apply_hostfile, filter_hosts, is_this_machine, parse_hostfile
from runtime.config.loader import load
from runtime.config.machines import node_group
from runtime.config.resolve import Resolved, from_arguments, resolve
from runtime.errors import ConfigurationError

HOSTS = "# two machines\nworker-0 slots=8\n\nworker-1   slots=8   # the other\n"
Launch = Callable[..., Resolved]


@pytest.fixture
def launch(tmp_path: Path) -> Launch:
    """The options of a launch with this hostfile, on the machine `here`."""

    def make(text: str = HOSTS, *, here: str = "worker-1", **given: Any) -> Resolved:
        (tmp_path / "hostfile").write_text(text)
        options = {"deepspeed_hostfile": str(tmp_path / "hostfile"), **given}
        return apply_hostfile(resolve([from_arguments(options)]), is_here=lambda host: host == here)

    return make


def test_hosts_and_slots_become_machines_processes_address_and_this_machines_rank(launch: Launch) -> None:
    resolved = launch()
    names = ("num_machines", "num_processes", "main_process_ip", "machine_rank")
    assert [resolved.get(name) for name in names] == [2, 16, "worker-0", 1]
    assert all(resolved[name].origin == "file" and "hostfile" in resolved[name].place for name in names)
    group = node_group(resolved)
    assert group is not None
    assert (group.num_nodes, group.rank, group.address) == (2, 1, "worker-0")
    assert not resolved["gpu_ids"].is_given


def test_workers_are_not_told_of_hosts(launch: Launch) -> None:
    choices = choose(launch(strategy="deepspeed"))
    assert not [name for name in choices.variables if "HOSTFILE" in name or "FILTER" in name]


@pytest.mark.parametrize(
    ("filters", "left"),
    [
        ({}, {"a": (0, 1, 2, 3), "b": (0, 1, 2, 3)}),
        ({"include": "b"}, {"b": (0, 1, 2, 3)}),
        ({"include": "b:0,2@a:3,1,3"}, {"a": (3, 1), "b": (0, 2)}),
        ({"exclude": "a"}, {"b": (0, 1, 2, 3)}),
        ({"exclude": "a:0@b:1,2"}, {"a": (1, 2, 3), "b": (0, 3)}),
        ({"exclude": "a:0,1,2,3"}, {"b": (0, 1, 2, 3)}),
    ],
)
def test_filters_take_and_leave_hosts_and_slots(filters: dict[str, str], left: dict[str, tuple[int, ...]]) -> None:
    given: dict[str, str | None] = {"include": None, "exclude": None, **filters}
    found = filter_hosts({"a": 4, "b": 4}, include=given["include"], exclude=given["exclude"])
    assert found == left
    assert list(found) == sorted(found)  # the hostfile's order, which decides ranks


@pytest.mark.parametrize(
    ("filters", "said"),
    [
        ({"include": "c"}, "c is no host of the hostfile"),
        ({"include": "a:4"}, "a has no slot 4"),
        ({"exclude": "a:x"}, "'a:x' is not NAME"),
        ({"include": "a:"}, "'a:' is not NAME"),
        ({"include": "a@@b"}, "'' is not NAME"),
        ({"exclude": "a@b"}, "leaves no slot"),
        ({"include": "a", "exclude": "b"}, "one of them"),
    ],
)
def test_filters_that_mean_nothing_are_refused(filters: dict[str, str], said: str) -> None:
    given: dict[str, str | None] = {"include": None, "exclude": None, **filters}
    with pytest.raises(ConfigurationError, match=said.replace("(", r"\(")):
        filter_hosts({"a": 4, "b": 4}, include=given["include"], exclude=given["exclude"])


@pytest.mark.parametrize(
    "line",
    [
        "worker-1",
        "worker-1 slots",
        "worker-1 slots=",
        "worker-1 slots=x",
        "worker-1 slots=0",
        "worker-1 slots=-1",
        "worker-1 slots=2x",
        "slots=2",
        "worker-1: slots=2",
        "worker-1 slots=2 slots=3",
        "worker-1,x slots=2",
        "\x00",
    ],
)
def test_malformed_lines_are_named_by_number(line: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_hostfile(f"worker-0 slots=2\n{line}\nworker-2 slot=2\n", place="hosts")
    assert "hosts:2: " in str(caught.value)
    assert "hosts:3: 'worker-2 slot=2'" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [("", "no host"), ("# none\n", "no host"), ("a slots=1\nb slots=1\na slots=2\n", ":3: a stands in line 1")],
)
def test_files_without_hosts_or_with_one_twice_are_refused(text: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        parse_hostfile(text, place="hosts")


def test_uneven_hosts_are_refused_until_a_filter_evens_them(launch: Launch) -> None:
    text = "a slots=4\nb slots=2\n"
    with pytest.raises(ConfigurationError, match="different numbers of slots: a 4, b 2"):
        launch(text, here="a")
    resolved = launch(text, here="a", deepspeed_inclusion_filter="a:1,3@b")
    assert (resolved.get("num_processes"), resolved.get("gpu_ids")) == (4, "1,3")
    assert not launch(text, here="a", deepspeed_inclusion_filter="a:1,3@b", cpu=True)["gpu_ids"].is_given


def test_one_host_is_a_launch_on_this_machine_alone(launch: Launch) -> None:
    resolved = launch("here slots=2\n", here="here")
    assert (resolved.get("num_machines"), resolved.get("num_processes")) == (1, 2)
    assert node_group(resolved) is None


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"num_processes": 4}, "num_processes 4 .*but the hostfile says 16"),
        ({"num_machines": 3}, "num_machines 3 .*but the hostfile says 2"),
        ({"machine_rank": 0}, "machine_rank 0 .*but worker-1 of .*is this machine"),
        ({"here": "elsewhere"}, "none of the hosts .*give --machine_rank, 0 to 1"),
        ({"here": "elsewhere", "machine_rank": 2}, "gives 2. Allowed: 0 to 1"),
        ({"deepspeed_exclusion_filter": "worker-1"}, "none of the hosts"),
    ],
)
def test_contradictions_and_a_machine_that_is_not_found_are_refused(
    launch: Launch, given: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigurationError, match=said):
        launch(**given)


def test_a_rank_that_is_given_finds_the_place_of_a_machine_with_another_name(launch: Launch) -> None:
    resolved = launch(here="elsewhere", machine_rank=0, main_process_ip="10.0.0.1")
    assert (resolved.get("machine_rank"), resolved.get("main_process_ip")) == (0, "10.0.0.1")


def test_a_missing_file_and_a_filter_without_one_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="hostfile /nonexistent cannot be read"):
        apply_hostfile(resolve([from_arguments({"deepspeed_hostfile": "/nonexistent"})]))
    with pytest.raises(ConfigurationError, match="without deepspeed_hostfile"):
        apply_hostfile(resolve([from_arguments({"deepspeed_inclusion_filter": "a"})]))


def test_accelerates_file_names_a_hostfile_beside_itself(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("here slots=2\nthere slots=2\n")
    (tmp_path / "peer.yaml").write_text(
        "compute_environment: LOCAL_MACHINE\ndistributed_type: DEEPSPEED\n"
        "deepspeed_config:\n  deepspeed_hostfile: hosts\n  deepspeed_inclusion_filter: there:1@here:0\n"
    )
    resolved = apply_hostfile(resolve([], load(tmp_path / "peer.yaml")), is_here=lambda host: host == "there")
    names = ("num_machines", "num_processes", "main_process_ip", "machine_rank", "gpu_ids")
    assert [resolved.get(name) for name in names] == [2, 2, "here", 1, "1"]


def test_this_machine_knows_its_names_and_no_others() -> None:
    import socket

    assert all(is_this_machine(name) for name in ("localhost", "127.0.0.1", socket.gethostname()))
    assert not any(is_this_machine(name) for name in ("203.0.113.9", "no.such.host.invalid", "a" * 300))
