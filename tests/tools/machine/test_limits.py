"""Container limits count, and 'no limit' is not one."""

from pathlib import Path

from tools.machine.limits import combine, container_limits, machine_limits, own_cgroups

CASES = Path(__file__).parent / "cases/C08"
HOST_TOTAL = 59_919 * 2**20
GIB = 2**30


def limits(name: str) -> tuple[object, ...]:
    found = combine(
        container_limits([CASES / name]), host_cpus=64, host_total_bytes=HOST_TOTAL, host_available_bytes=50 * GIB
    )
    return (found.num_cpus, found.cpu_source, found.memory_total_bytes, found.memory_source)


def test_a_version_2_cgroup_limits_processors_and_memory() -> None:
    assert limits("cgroup_v2") == (2, "cgroup", 32 * GIB, "cgroup")
    found = combine(
        container_limits([CASES / "cgroup_v2"]),
        host_cpus=64,
        host_total_bytes=HOST_TOTAL,
        host_available_bytes=50 * GIB,
    )
    assert found.memory_available_bytes == 28 * GIB


def test_max_and_the_huge_value_of_version_1_are_no_limits() -> None:
    assert limits("cgroup_none") == (64, "host", HOST_TOTAL, "host")
    assert limits("cgroup_v1") == (64, "host", HOST_TOTAL, "host")


def test_the_tightest_limit_of_the_chain_holds(tmp_path: Path) -> None:
    inner = tmp_path / "cgroups/slice/job"
    inner.mkdir(parents=True)
    (tmp_path / "cgroups/slice/memory.max").write_text(str(GIB))
    (tmp_path / "cgroups/slice/cpu.max").write_text("50000 100000")
    (inner / "memory.max").write_text(str(8 * GIB))
    (inner / "cpu.max").write_text("max 100000")
    (tmp_path / "self").mkdir()
    (tmp_path / "self/cgroup").write_text("0::/slice/job\n")
    (tmp_path / "meminfo").write_text("MemTotal: 16777216 kB\nMemAvailable: 8388608 kB\n")
    assert inner in own_cgroups(tmp_path / "self/cgroup", tmp_path / "cgroups")
    found = machine_limits(proc=tmp_path, cgroups=tmp_path / "cgroups")
    assert (found.memory_total_bytes, found.memory_source) == (GIB, "cgroup")
    assert (found.num_cpus, found.cpu_source) == (1, "cgroup")


def test_file_cache_counts_as_free(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text(str(10 * GIB))
    (tmp_path / "memory.current").write_text(str(9 * GIB))
    (tmp_path / "memory.stat").write_text(f"anon 1\ninactive_file {6 * GIB}\n")
    assert container_limits([tmp_path]).memory_free_bytes == 7 * GIB


def test_this_machine_has_processors_and_memory() -> None:
    found = machine_limits()
    assert found.num_cpus >= 1
    assert 0 < found.memory_available_bytes <= found.memory_total_bytes


def test_files_of_a_cgroup_that_hold_no_numbers_limit_nothing(tmp_path: Path) -> None:
    (tmp_path / "cpu.max").write_text("200000 0\n")
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("400\n")
    (tmp_path / "memory.stat").write_text("inactive_file abc\n")
    found = container_limits([tmp_path])
    assert (found.cpus, found.memory_bytes, found.memory_free_bytes) == (None, 1000, 600)
    membership = tmp_path / "membership"
    membership.write_text("no such form\n0::/x\n")
    assert own_cgroups(membership, tmp_path) == [tmp_path]
