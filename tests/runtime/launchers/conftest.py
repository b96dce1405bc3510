"""A private Slurm cluster on loopback: two nodes on one machine, started and ended by the tests that need it."""

import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from runtime.procfs import alive, start_ticks

_PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol")
_CGROUPS = Path("/sys/fs/cgroup")
_CONF = """
ClusterName=forerun
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={root}/munge/socket
CredType=cred/munge
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool.%n
SlurmctldPidFile={root}/slurmctld.pid
SlurmdPidFile={root}/slurmd.%n.pid
SlurmctldLogFile={root}/slurmctld.log
SlurmdLogFile={root}/slurmd.%n.log
ProctrackType={proctrack}
TaskPlugin={task}
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_interval=1,sched_min_interval=0,batch_sched_delay=0
SlurmdParameters=config_overrides
ReturnToService=2
MpiDefault=none
KillWait=20
OverTimeLimit=0
MinJobAge=600
BatchStartTimeout=120
MessageTimeout=60
InactiveLimit=0
MaxNodeCount=8
NodeName=n[1-2] NodeHostname={host} NodeAddr=127.0.0.1 Port={node_ports} CPUs=4 RealMemory=4000 State=UNKNOWN
PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def _wait(condition: Callable[[], object], what: str, deadline_s: float = 30.0) -> None:
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, f"{what} did not come within {deadline_s} s"
        time.sleep(0.05)


def _free_ports() -> int:
    """The first of three ports in a row that are free."""
    for _ in range(100):
        first = 17_000 + secrets.randbelow(10_000)
        sockets = [socket.socket() for _ in range(3)]
        try:
            for number, probe in enumerate(sockets):
                probe.bind(("127.0.0.1", first + number))
            return first
        except OSError:
            continue
        finally:
            for probe in sockets:
                probe.close()
    raise AssertionError("no free ports")


def _start(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, timeout=30.0, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, (words, done.stdout, done.stderr)


def _end(pid_file: Path) -> None:
    """End the very process that wrote this file."""
    if not pid_file.exists() or not (text := pid_file.read_text().strip()):
        return
    pid = int(text)
    ticks = start_ticks(pid)
    if ticks is None:
        return
    os.kill(pid, signal.SIGTERM)
    try:
        _wait(lambda: not alive(pid, ticks), f"the end of {pid_file.name}", 10.0)
    except AssertionError:
        os.kill(pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The configuration file of a running cluster; SLURM_CONF names it."""
    if os.geteuid() != 0:
        pytest.skip("a Slurm cluster of its own needs root")
    if missing := [program for program in _PROGRAMS if shutil.which(program) is None]:
        pytest.skip(f"no {', '.join(missing)}: install slurmctld, slurmd, slurm-client and munge")
    root = Path("/tmp") / f"forerun-slurm-{secrets.token_hex(4)}"  # munge wants every folder above to be safe
    for name in ("state", "spool.n1", "spool.n2", "munge"):
        (root / name).mkdir(parents=True)
    conf, first = root / "slurm.conf", _free_ports()
    has_cgroups = (_CGROUPS / "freezer").is_dir()
    conf.write_text(
        _CONF.format(
            root=root,
            host=socket.gethostname().partition(".")[0],
            port=first,
            node_ports=f"[{first + 1}-{first + 2}]",
            proctrack="proctrack/cgroup" if has_cgroups else "proctrack/linuxproc",
            task="task/cgroup" if has_cgroups else "task/none",
        )
    )
    if has_cgroups:
        (root / "cgroup.conf").write_text(
            f"CgroupPlugin=cgroup/v1\nCgroupMountpoint={_CGROUPS}\nConstrainRAMSpace=no\n"
        )
    key = root / "munge" / "key"
    key.touch(mode=0o600)
    key.write_bytes(secrets.token_bytes(128))
    files = {"key-file": key, "socket": root / "munge/socket", "pid-file": root / "munged.pid"}
    files |= {"log-file": root / "munge/log", "seed-file": root / "munge/seed"}
    patch = pytest.MonkeyPatch()
    patch.setenv("SLURM_CONF", str(conf))
    try:
        _start("munged", "--num-threads=2", *(f"--{name}={path}" for name, path in files.items()))
        _start("slurmctld", "-c")
        for node in ("n1", "n2"):
            _start("slurmd", "-N", node)
        _wait(lambda: _output("sinfo", "-h", "-N", "-t", "idle", "-o", "%N").split() == ["n1", "n2"], "two idle nodes")
        yield conf
        _output("scancel", "--full", "--user=root")
        _wait(lambda: not _output("squeue", "-h").strip(), "an empty queue", 40.0)
    finally:
        for name in ("slurmctld.pid", "slurmd.n1.pid", "slurmd.n2.pid", "munged.pid"):
            _end(root / name)
        patch.undo()
        for controller in _CGROUPS.glob("*/slurm_n[12]"):
            for folder, _, _ in os.walk(controller, topdown=False):
                os.rmdir(folder)
        shutil.rmtree(root, ignore_errors=True)


def _output(*words: str) -> str:
    return subprocess.run(words, capture_output=True, text=True, timeout=30.0, stdin=subprocess.DEVNULL).stdout
