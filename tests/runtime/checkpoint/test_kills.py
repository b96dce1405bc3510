"""Jobs that save without end are killed (SIGKILL) at random moments: the newest complete checkpoint is found, whole."""

from pathlib import Path

import pytest

pytestmark = pytest.mark.multiprocess

SCRIPT = """
import os, random, select, signal, socket, struct, time, traceback
from itertools import count
from runtime import ProjectConfiguration
from runtime.checkpoint.manifest import is_complete
from runtime.state import PartialState

def start(naming, sharded):
    project = None
    if naming == "numbered":
        project = ProjectConfiguration(str(ROOT), automatic_checkpoint_naming=True, total_limit=2)
    plugin = {"cpu_offload": False} if sharded else None
    accelerator = Accelerator(cpu=True, project_config=project, fsdp_plugin=plugin)
    model = nn.Linear(257, 300, bias=False)
    return accelerator, *accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.5))

def fill(model, optimizer, number):
    for parameter in model.parameters():
        torch.nn.init.constant_(parameter, float(number))
        optimizer.state[parameter] = {"momentum_buffer": parameter.detach().clone()}

def train(rank, port, first, told):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(RANKS), LOCAL_WORLD_SIZE=str(RANKS),
                      MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    for name in [name for name in os.environ if name.startswith("TORCHELASTIC")]:
        del os.environ[name]
    accelerator, model, optimizer = start(NAMING, SHARDED)
    if first:
        accelerator.load_state(None if NAMING == "numbered" else TARGET)
    for number in count(first):
        fill(model, optimizer, number)
        accelerator.save_state(None if NAMING == "numbered" else TARGET, async_save=BACKGROUND)
        if rank == 0:  # a save in the background is over when the next one has begun
            os.write(told, struct.pack("<q", number - BACKGROUND))

def check(answer):
    accelerator, model, optimizer = start(NAMING, False)
    accelerator.load_state(None if NAMING == "numbered" else TARGET)
    (buffer,) = (state["momentum_buffer"] for state in optimizer.state.values())
    values = set(model.weight.unique().tolist()) | set(buffer.unique().tolist())
    assert len(values) == 1, f"mixed: {values}"
    os.write(answer, struct.pack("<q", int(values.pop())))

def forked(work, *arguments):
    pid = os.fork()
    if pid:
        return pid
    try:
        PartialState._process = None
        work(*arguments)
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)

def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]

def told_within(pipe, deadline_s):
    ready, _, _ = select.select([pipe], [], [], deadline_s)
    return os.read(pipe, 2**16) if ready else b""

start(NAMING, False)  # what is imported late is imported before the forks
import torch.distributed.distributed_c10d, torch.distributed.tensor._utils, torch.nn.parallel.distributed
first, found = 0, []
for trial in range(TRIALS):
    reading, writing = os.pipe()
    port = free_port()
    pids = [forked(train, rank, port, first, writing) for rank in range(RANKS)]
    os.close(writing)
    said = b""
    while not said or struct.unpack("<q", said[-8:])[0] < 0:  # one at least is complete
        more = told_within(reading, 25)
        assert more, "nothing was saved"
        said += more
    end = time.monotonic() + random.uniform(0, 0.08)
    while (left := end - time.monotonic()) > 0:
        said += told_within(reading, left)
    random.shuffle(pids)
    for number in (signal.SIGSTOP, signal.SIGKILL):  # none sees another die and ends by itself
        for pid in pids:
            os.kill(pid, number)
    for pid in pids:
        _, status = os.waitpid(pid, 0)
        assert os.WIFSIGNALED(status), "it ended by itself"
    while more := os.read(reading, 2**16):
        said += more
    os.close(reading)
    complete = struct.unpack("<q", said[-8:])[0]
    reading, writing = os.pipe()
    pid = forked(check, writing)
    os.close(writing)
    answer = told_within(reading, 25)
    os.waitpid(pid, 0)
    os.close(reading)
    assert answer, f"trial {trial}: no checkpoint loads, {complete} was complete"
    number = struct.unpack("<q", answer)[0]
    assert number >= complete, f"trial {trial}: loaded {number}, {complete} was complete"
    found.append(number)
    first = number + 1
left = sorted(os.listdir(ROOT)) + sorted(os.listdir(ROOT / "checkpoints") if NAMING == "numbered" else [])
accelerator = Accelerator(cpu=True)
say(found=found, left=left)
"""

MODES = [
    pytest.param(
        naming, ranks, background, sharded, id=f"{naming}-{ranks}{'-sharded' * sharded}{'-async' * background}"
    )
    for naming, ranks, background, sharded in [
        ("overwritten", 1, False, False),
        ("overwritten", 1, True, False),
        ("overwritten", 2, False, False),
        ("overwritten", 2, True, False),
        ("overwritten", 2, False, True),
        ("numbered", 1, False, False),
        ("numbered", 2, True, True),
    ]
]


def _run(
    run_ranks, root: Path, trials: int, naming: str, ranks: int, background: bool, sharded: bool, deadline_s: float
):
    head = f"""
ROOT = Path({str(root)!r})
TARGET = ROOT / "checkpoint"
TRIALS, NAMING, RANKS, BACKGROUND, SHARDED = {trials}, {naming!r}, {ranks}, {background}, {sharded}
"""
    (said,) = run_ranks(head + SCRIPT, ranks=1, deadline_s=deadline_s).said
    assert len(said["found"]) == trials
    assert len(set(said["found"])) > trials // 2
    assert said["found"] == sorted(said["found"])
    assert len(said["left"]) <= 6, said["left"]


@pytest.mark.parametrize(("naming", "ranks", "background", "sharded"), MODES)
def test_ten_kills(run_ranks, quick_path: Path, naming: str, ranks: int, background: bool, sharded: bool) -> None:
    _run(run_ranks, quick_path, 10, naming, ranks, background, sharded, 55.0)


@pytest.mark.soak
@pytest.mark.parametrize(("naming", "ranks", "background", "sharded"), MODES)
def test_a_hundred_kills(run_ranks, quick_path: Path, naming: str, ranks: int, background: bool, sharded: bool) -> None:
    _run(run_ranks, quick_path, 100, naming, ranks, background, sharded, 500.0)
