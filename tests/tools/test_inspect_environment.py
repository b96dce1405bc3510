"""The whole report: it never fails, and unknown is never zero."""

import json
import os
import sys
from pathlib import Path

from tests.fakes.nvml import FakeNvml
from tools.inspect_environment import inspect_environment

CASES = Path(__file__).parent / "machine/cases"


def test_a_machine_without_a_driver_is_described(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "a.bin").write_bytes(b"12345")
    (tmp_path / "sub/b.bin").write_bytes(b"1234567")
    (tmp_path / "sub/loop").symlink_to(tmp_path)
    report = inspect_environment(python=sys.executable, paths=[tmp_path, tmp_path / "a.bin", tmp_path / "no\x1b[2Jpe"])
    folder, file, missing = report.paths
    assert (folder.kind, folder.num_files) == ("directory", 2)
    assert folder.size_bytes == 12
    assert folder.filesystem
    assert (file.kind, file.size_bytes) == ("file", 5)
    assert (missing.kind, missing.size_bytes, missing.exists) == ("missing", None, False)
    assert report.packages["numpy"]
    assert report.num_cpus >= 1
    text = json.dumps(report.model_dump(mode="json"), allow_nan=False)
    assert "\\u001b" not in text


def test_devices_of_a_recorded_machine_are_in_the_report() -> None:
    report = inspect_environment(
        python=sys.executable,
        paths=[],
        environment={**os.environ, "CUDA_VISIBLE_DEVICES": "1"},
        open_driver=lambda: FakeNvml.read(CASES / "C04/nvml.json"),
    )
    assert [d.ordinal for d in report.devices] == [None, 0]
    assert "torch_without_cuda" in [f.code for f in report.findings] or report.cuda_version is not None


def test_an_interpreter_that_does_not_answer_is_an_error_in_the_report(tmp_path: Path) -> None:
    report = inspect_environment(python=str(tmp_path / "python"), paths=[])
    assert report.python_version is None
    assert report.packages == {}
    assert [f.code for f in report.findings if f.level == "error"] == ["interpreter"]
