"""find_executable_batch_size on several ranks: all try the same size, and nobody waits for a rank that has left."""

import pytest

from tests.runtime.conftest import RunRanks

pytestmark = pytest.mark.multiprocess

_SEARCH = """
from runtime.memory import find_executable_batch_size
accelerator = Accelerator(cpu=True{options})
rank = accelerator.process_index
tried, losses = [], []

@find_executable_batch_size(starting_batch_size=16)
def train(batch_size):
    tried.append(batch_size)
    accelerator.free_memory()
    torch.manual_seed(0)
    model, optimizer = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1)), None
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = accelerator.prepare(model, optimizer)
    for step in range(3):
        loss = model(torch.full((batch_size, 4), 1.0 + rank)).square().mean()
        {body}
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return accelerator.reduce(torch.tensor(float(batch_size)), "mean").item()

found = train()
total = accelerator.reduce(loss_sum := torch.tensor(1.0), "sum").item()
accelerator.wait_for_everyone()
say(found=found, tried=tried, total=total, last=losses[-1])
"""


@pytest.mark.parametrize(
    ("ranks", "options"), [(2, ""), (4, ", fsdp_plugin={'reshard_after_forward': True}")], ids=["ddp", "fsdp2"]
)
def test_one_rank_that_runs_out_before_backward_fetches_the_others_out_of_it(
    run_ranks: RunRanks, ranks: int, options: str
) -> None:
    body = "if rank == 1 and batch_size > 13 and step == 1: torch.empty(2**60)"
    ended = run_ranks(_SEARCH.format(body=body, options=options), ranks=ranks, deadline_s=50)
    for said in ended.said:
        assert said["tried"] == [16, 14, 12]
        assert said["found"] == 12
        assert said["total"] == ranks


def test_ranks_that_want_different_memory_end_with_the_smallest_size(run_ranks: RunRanks) -> None:
    body = "if batch_size > (14 if rank else 10): torch.empty(2**60)"
    ended = run_ranks(_SEARCH.format(body=body, options=""))
    assert [said["found"] for said in ended.said] == [10, 10]
    assert ended.said[0]["tried"] == ended.said[1]["tried"] == [16, 14, 12, 10]


def test_a_rank_in_one_of_our_collectives_comes_out_of_it(run_ranks: RunRanks) -> None:
    body = """
        if batch_size > 15 and rank == 0: torch.empty(2**60)
        accelerator.gather(loss.detach())
"""
    ended = run_ranks(_SEARCH.format(body=body, options=""))
    assert [said["tried"] for said in ended.said] == [[16, 14]] * 2


def test_a_rank_that_is_done_already_begins_anew_with_the_others(run_ranks: RunRanks) -> None:
    script = """
    from runtime.memory import find_executable_batch_size
    accelerator = Accelerator(cpu=True)
    tried = []

    @find_executable_batch_size(starting_batch_size=8 - accelerator.process_index)
    def train(batch_size):
        tried.append(batch_size)
        if accelerator.process_index == 1 and batch_size > 5:
            torch.empty(2**60)
        return batch_size

    found = train()
    again = train()
    say(found=found, again=again, tried=tried)
    """
    ended = run_ranks(script)
    assert [said["found"] for said in ended.said] == [5, 5]
    assert [said["again"] for said in ended.said] == [5, 5]
    assert [said["tried"] for said in ended.said] == [[7, 6, 5, 5]] * 2, "the smallest of what the ranks began with"


def test_an_error_of_another_kind_is_raised_where_it_happened_and_named_elsewhere(run_ranks: RunRanks) -> None:
    script = """
    from runtime.errors import DistributedError
    from runtime.memory import find_executable_batch_size
    accelerator = Accelerator(cpu=True)

    @find_executable_batch_size(starting_batch_size=8)
    def train(batch_size):
        if accelerator.process_index == 1:
            raise ValueError("a bad row")

    try:
        train()
    except ValueError as error:
        say(error=str(error))
    except DistributedError as error:
        say(error=str(error))
    """
    ended = run_ranks(script)
    assert "rank 1 failed, and not for want of memory" in ended.said[0]["error"]
    assert ended.said[1]["error"] == "a bad row"


def test_a_group_that_cannot_be_opened_anew_is_refused_at_once(run_ranks: RunRanks) -> None:
    script = """
    import torch.distributed as dist
    from runtime.errors import UsageError
    from runtime.memory import find_executable_batch_size
    dist.init_process_group("gloo")
    accelerator = Accelerator(cpu=True)
    try:
        find_executable_batch_size(lambda batch_size: None, starting_batch_size=8)()
    except UsageError as error:
        say(error=str(error))
    dist.destroy_process_group()
    """
    for said in run_ranks(script).said:
        assert "let Accelerator start the process group" in said["error"]
