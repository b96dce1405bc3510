"""The end of a process whose gloo threads still hold tensors."""

import pytest

_SCRIPT = """
import os, time

accelerator = Accelerator(cpu=True)

def gloo_threads():
    for tid in os.listdir("/proc/self/task"):
        if (Path("/proc/self/task") / tid / "comm").read_text().strip() == "pt_gloo_runloop":
            yield int(tid)

def schedule(policy):
    for tid in gloo_threads():
        os.sched_setscheduler(tid, policy, os.sched_param(0))

# All on one core beside a process that is never idle, so that gloo's threads come late to let go of the tensors ...
core = {min(os.sched_getaffinity(0))}
for tid in map(int, os.listdir("/proc/self/task")):
    os.sched_setaffinity(tid, core)
busy = os.fork()
if busy == 0:
    while os.getppid() != 1:
        pass
    os._exit(0)
schedule(os.SCHED_IDLE)
group = torch.distributed.group.WORLD  # as a model in DDP keeps it beyond the end
accelerator.end_training()
say(done=True)
values = torch.ones(100)
group.allreduce([values]).wait()
del values

# ... and then wait for the interpreter, which is not given away again before its end.
sys.setswitchinterval(100)
schedule(os.SCHED_OTHER)
os.kill(busy, 9)  # and not waited for, which would give the interpreter away
until = time.perf_counter() + 0.2
while time.perf_counter() < until:
    pass
"""


@pytest.mark.multiprocess
def test_a_rank_outlives_the_last_collective_of_its_threads(run_ranks) -> None:
    for _ in range(2):
        assert "terminate called" not in run_ranks(_SCRIPT).output
