"""get_logger: who logs, in which order, once, and where the line comes from."""

import logging
import subprocess
import sys
from pathlib import Path

import pytest

import runtime
from runtime.accelerator import Accelerator
from runtime.errors import ConfigurationError, UsageError
from runtime.logging import get_logger
from tests.runtime.conftest import RunRanks

pytestmark = pytest.mark.usefixtures("fresh_process")


def test_a_line_names_its_caller_and_carries_no_rank_where_there_is_one(caplog: pytest.LogCaptureFixture) -> None:
    Accelerator(cpu=True)
    logger = get_logger("some.script", log_level="debug")
    logger.debug("seen %d", 1)
    logger.warning_once("twice %s", "a")
    logger.warning_once("twice %s", "a")
    logger.warning_once("twice %s", "b")
    get_logger("another.script").warning_once("twice %s", "a")
    assert [record.getMessage() for record in caplog.records] == ["seen 1", "twice a", "twice b", "twice a"]
    assert {Path(record.pathname).name for record in caplog.records} == {"test_logging.py"}
    assert {record.funcName for record in caplog.records} == {
        "test_a_line_names_its_caller_and_carries_no_rank_where_there_is_one"
    }


def test_levels_are_the_loggers_own(caplog: pytest.LogCaptureFixture) -> None:
    Accelerator(cpu=True)
    before = logging.getLogger().level
    logger = get_logger("quiet.script", log_level=logging.ERROR)
    logger.warning("not seen")
    assert caplog.records == []
    assert logging.getLogger().level == before
    with pytest.raises(ConfigurationError, match="LOUD"):
        get_logger("x", log_level="LOUD")


def test_before_ranks_are_known_it_says_so() -> None:
    with pytest.raises(UsageError, match="make the Accelerator first"):
        get_logger("early").info("hello")


def test_the_module_hides_no_standard_library() -> None:
    folder = Path(runtime.__file__).parent
    code = (
        "import logging, runpy; runpy.run_path('worker.py'); assert 'lib' in logging.__file__; print(logging.__file__)"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], cwd=folder, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr


@pytest.mark.multiprocess
def test_ranks_log_alone_together_and_in_order(run_ranks: RunRanks) -> None:
    script = """
    import logging
    logging.basicConfig(stream=sys.stdout, level="INFO", format="%(message)s", force=True)
    from runtime.logging import get_logger
    accelerator = Accelerator(cpu=True)
    logger = get_logger("script")
    rank = accelerator.process_index
    logger.info("alone")
    logger.info("all", main_process_only=False)
    accelerator.wait_for_everyone()
    for turn in range(3):
        logger.info("turn %d", turn, in_order=True)
    sys.stdout.flush()
    say(done=True)
    """
    lines = run_ranks(script, ranks=2).output.splitlines()
    assert [line for line in lines if "alone" in line] == ["[RANK 0] alone"]
    assert sorted(line for line in lines if "all" in line) == ["[RANK 0] all", "[RANK 1] all"]
    assert [line for line in lines if "turn" in line] == [
        f"[RANK {rank}] turn {t}" for t in range(3) for rank in (0, 1)
    ]
