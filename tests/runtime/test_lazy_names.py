"""Importing the package costs no torch, and says what to install where torch is missing."""

import subprocess
import sys
from pathlib import Path

import pytest

import runtime

ROOT = Path(__file__).resolve().parents[2]


def _python(code: str, *flags: str) -> str:
    completed = subprocess.run(
        [sys.executable, *flags, "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{code}"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    return completed.stdout + completed.stderr


def test_importing_the_package_loads_no_torch() -> None:
    code = "import runtime, runtime.utils; print(sorted(m for m in ('torch', 'numpy', 'pydantic') if m in sys.modules))"
    assert _python(code) == "[]\n"


def test_without_torch_the_error_names_the_extra() -> None:
    output = _python("from runtime import Accelerator", "-S")
    assert "MissingDependencyError" in output
    assert 'pip install "forerun[train]"' in output


def test_workers_need_the_standard_library_numpy_and_torch_alone() -> None:
    code = (
        "from runtime import Accelerator, set_seed, skip_first_batches\n"
        "a = Accelerator(cpu=True)\n"
        "print(sorted(m for m in ('pydantic', 'yaml', 'rich', 'mcp', 'sqlalchemy') if m in sys.modules))"
    )
    assert _python(code) == "[]\n"


def test_what_only_some_trainings_ask_for_is_imported_when_asked_for() -> None:
    optional = (
        "deepspeed",
        "fsspec",
        "runtime.checkpoint.export",
        "runtime.checkpoint.foreign",
        "runtime.checkpoint.storage",
        "runtime.debugging",
        "runtime.migration",
        "runtime.remote_saving",
        "runtime.saving",
        "runtime.strategies.deepspeed_options",
        "runtime.strategies.deepspeed",
        "runtime.strategies.fsdp2",
        "safetensors",
        "tensorboard",
        "torch.distributed.checkpoint",
        "torch.distributed.fsdp",
        "torch.utils.flop_counter",
    )
    code = "import torch\nbefore = set(sys.modules)\nfrom runtime import Accelerator\nnew = set(sys.modules) - before\n"
    assert _python(f"{code}print(sorted(new & set({optional})))") == "[]\n"


@pytest.mark.parametrize("collects", [True, False])
def test_an_import_leaves_the_garbage_collector_as_it_was(collects: bool) -> None:
    code = f"import gc\n{'' if collects else 'gc.disable()'}\nfrom runtime import Accelerator\nprint(gc.isenabled())"
    assert _python(code) == f"{collects}\n"


@pytest.mark.parametrize("name", runtime.__all__)
def test_every_listed_name_exists(name: str) -> None:
    assert getattr(runtime, name).__name__ == name
    assert name in dir(runtime)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Trainer'"):
        _ = runtime.Trainer


def test_the_second_import_path_of_the_document() -> None:
    from runtime.utils import set_seed

    assert set_seed is runtime.set_seed
    assert runtime.utils.DataLoaderConfiguration is runtime.DataLoaderConfiguration
