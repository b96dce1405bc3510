"""FORERUN_NO_SKIPS=1 turns a skip into a failed run: what .ci/run relies on."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).parent / "conftest.py"


@pytest.mark.parametrize(
    ("variable", "body", "workers", "exit_code"),
    [
        ("1", "pytest.skip('no gadget here')", "0", 1),
        ("1", "pytest.skip('no gadget here')", "1", 1),
        ("", "pytest.skip('no gadget here')", "0", 0),
        ("1", "pass", "0", 0),
    ],
)
def test_skips_fail_the_run_only_when_asked(
    tmp_path: Path, variable: str, body: str, workers: str, exit_code: int
) -> None:
    shutil.copy(CONFTEST, tmp_path / "conftest.py")
    (tmp_path / "test_one.py").write_text(f"import pytest\n\ndef test_one():\n    {body}\n")
    finished = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "no:cacheprovider",
            "-n",
            workers,
            "--rootdir",
            str(tmp_path),
            str(tmp_path),
        ],
        env={"PATH": "/usr/bin:/bin", "FORERUN_NO_SKIPS": variable},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert finished.returncode == exit_code, finished.stdout
    assert ("no gadget here" in finished.stdout) == (variable == "1" and "skip" in body)
