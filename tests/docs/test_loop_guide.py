"""The blocks of docs/loop.md run, one after the other, as one script."""

import os
import re
import subprocess
import sys
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]


def _blocks() -> list[str]:
    found = re.findall(r"```python\n(.*?)```", (_ROOT / "docs" / "loop.md").read_text(), flags=re.DOTALL)
    assert len(found) == 9
    return found


def _run(source: str, directory: Path) -> str:
    script = directory / "guide.py"
    script.write_text(source)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FORERUN_")}
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)],
        cwd=directory,
        env=kept | {"PYTHONPATH": str(_ROOT), "OMP_NUM_THREADS": "1", "FORERUN_DEVICE": "cpu"},
        capture_output=True,
        text=True,
        timeout=55,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_the_blocks_of_a_training_run(tmp_path: Path) -> None:
    output = _run("\n".join(_blocks()[:-1]) + "\naccelerator.end_training()\n", tmp_path)
    assert "compute bfloat16" in output
    assert (tmp_path / "traces" / "profile_0.json").exists()
    assert (tmp_path / "project" / "digits" / "metrics.jsonl").read_text().count("loss") == 8
    assert list((tmp_path / "project" / "digits").glob("events.out.tfevents.*"))


def test_the_block_on_several_processes_runs(tmp_path: Path) -> None:
    output = _run(_blocks()[-1], tmp_path)  # where two ranks' line ends fall is theirs to say
    assert sorted(re.findall(r"rank \d", output)) == ["rank 0", "rank 1"]
