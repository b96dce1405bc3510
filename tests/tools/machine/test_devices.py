"""Accelerators as recorded machines show them: each test is a way in which a tool has lied about them."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes.nvml import FakeNvml
from tools.domain.reports import Device
from tools.machine import DeviceSurvey, MachineLimits, fits, survey_devices
from tools.machine.limits import read_meminfo

CASES = Path(__file__).parent / "cases"
GIB = 2**30
LIMITS = MachineLimits(4, "host", 64 * GIB, 32 * GIB, "host")


def survey(name: str, *, visible: str | None = None, limits: MachineLimits = LIMITS, **extra: str) -> DeviceSurvey:
    environment = dict(extra) if visible is None else {"CUDA_VISIBLE_DEVICES": visible, **extra}
    return survey_devices(environment, limits, lambda: FakeNvml.read(CASES / name))


def values(name: str) -> list[str]:
    return [line.split("=", 1)[1] for line in (CASES / name).read_text().splitlines()]


def words(result: DeviceSurvey) -> str:
    return " | ".join(f.message for f in result.findings)


def test_a_mig_uuid_names_one_instance_with_its_own_memory() -> None:
    result = survey("C01/nvml.json", visible=values("C01/env.txt")[0])
    assert len(result.usable) == 1
    device = result.usable[0]
    assert device.memory_total_bytes == 20_937_965_568
    assert device.utilisation_percent is None
    assert any("not supported on MIG" in reason for reason in device.reasons)
    assert any("GPU-aaaaaaaa-0000-4000-8000-000000000001" in reason for reason in device.reasons)
    assert fits(device, 30 * GIB).answer == "does not fit"
    assert fits(device, 10 * GIB).answer == "fits"


def test_one_process_uses_one_mig_instance() -> None:
    both = "MIG-11111111-2222-5333-8444-555555555555,MIG-66666666-7777-5888-8999-aaaaaaaaaaaa"
    result = survey("C01/nvml.json", visible=both)
    assert len(result.usable) == 1
    assert "one MIG instance" in words(result)
    assert len(survey("C01/nvml.json").usable) == 1


def test_a_unique_beginning_of_a_uuid_names_a_device() -> None:
    unique, ambiguous, unknown = values("C02/env.txt")
    result = survey("C02/nvml.json", visible=unique)
    assert [(d.ordinal, d.physical_index) for d in result.usable] == [(0, 1)]
    result = survey("C02/nvml.json", visible=ambiguous)
    assert result.usable == ()
    assert "ambiguous" in words(result)
    assert repr(ambiguous) in words(result)
    result = survey("C02/nvml.json", visible=unknown)
    assert result.usable == ()
    assert "no such device" in words(result)
    assert unknown in words(result)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("1 0", "reads '1 0' as 1"),
        ("1;0", "commas alone"),
        ("'1", "begins with a quote"),
        ("gpu-8932f9", "in capitals"),
    ],
)
def test_a_value_that_cuda_reads_otherwise_than_meant_is_explained(value: str, said: str) -> None:
    assert said in words(survey("C04/nvml.json", visible=value))


def test_ordinals_follow_the_variable_and_not_the_driver() -> None:
    one, swapped = values("C04/env.txt")
    result = survey("C04/nvml.json", visible=one)
    (device,) = result.usable
    assert (device.ordinal, device.physical_index, device.memory_total_bytes) == (0, 1, 8_513_978_368)
    assert device.utilisation_percent == 0
    assert device.uuid == "GPU-11111111-0000-4000-8000-000000000001"
    assert fits(device, 12 * 10**9).answer == "does not fit"
    result = survey("C04/nvml.json", visible=swapped)
    assert [d.physical_index for d in result.usable] == [1, 0]
    assert "CUDA_DEVICE_ORDER" in words(result)
    assert "CUDA_DEVICE_ORDER" not in words(survey("C04/nvml.json", CUDA_DEVICE_ORDER="PCI_BUS_ID"))


def test_a_gpu_without_memory_of_its_own_shares_the_systems() -> None:
    total, available = read_meminfo(CASES / "C05/meminfo.txt")
    limits = MachineLimits(20, "host", total, available, "host")
    (device,) = survey("C05/nvml.json", limits=limits).usable
    assert (device.memory_kind, device.memory_total_bytes) == ("unified", 130_663_165_952)
    assert any("shared with the CPU" in r and "approximate" in r for r in device.reasons)
    assert fits(device, GIB) == ("unknown", "shared memory, cannot be guaranteed")


def test_a_discrete_gpu_that_hides_its_memory_does_not_get_the_systems() -> None:
    (device,) = survey("C05/nvml_discrete.json").usable
    assert device.memory_total_bytes is None
    assert any("not supported (3)" in reason for reason in device.reasons)
    assert fits(device, GIB).answer == "unknown"


def test_a_lost_gpu_hides_no_healthy_one() -> None:
    result = survey("C07/nvml.json")
    assert len(result.devices) == 4
    assert [d.physical_index for d in result.usable] == [0, 1]
    assert result.devices[2].reasons[0] == "lost (15)"
    assert any("memory unknown (999)" in reason for reason in result.devices[3].reasons)
    assert result.devices[3].memory_total_bytes is None
    assert "GPU 2 cannot be used" in words(result)
    assert "GPU 3 cannot be used" in words(result)


@pytest.mark.parametrize(("code", "level"), [(9, "warning"), (12, "note"), (18, "warning"), (999, "warning")])
def test_a_driver_that_does_not_start_is_a_finding(code: int, level: str) -> None:
    result = survey_devices({}, LIMITS, lambda: FakeNvml({"nvmlInit": code, "devices": []}))
    assert result.devices == ()
    assert [f.level for f in result.findings] == [level]
    assert f"({code})" in words(result)


@pytest.mark.parametrize(
    ("value", "physical"),
    [
        ("0,1", [0, 1]),
        ("0,7,1", [0]),
        ("-1", []),
        ("", []),
        ("0,0", []),
        ("1gpu", [1]),
        ("none", []),
        (" 1 , 0", [1, 0]),
    ],
)
def test_lists_are_read_as_cuda_reads_them(value: str, physical: list[int]) -> None:
    result = survey("C04/nvml.json", visible=value)
    assert [d.physical_index for d in result.usable] == physical
    assert len(result.devices) == 2


def test_the_driver_is_closed_again() -> None:
    nvml = FakeNvml.read(CASES / "C07/nvml.json")
    survey_devices({}, LIMITS, lambda: nvml)
    assert nvml.closed


@pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")
def test_a_library_with_the_drivers_own_interface_is_read_by_nvidia_ml_py(tmp_path: Path) -> None:
    source = Path(__file__).parent / "nvml_stub.c"
    library = tmp_path / "libnvidia-ml.so.1"
    subprocess.run(["gcc", "-shared", "-fPIC", "-w", "-o", library, source], check=True, timeout=50)
    program = (
        "from tools.machine import *\nimport json\n"
        "limits = MachineLimits(1, 'host', 1, 1, 'host')\n"
        "s = survey_devices({'CUDA_VISIBLE_DEVICES': 'GPU-00000002'}, limits)\n"
        "print(json.dumps([d.model_dump(mode='json') for d in s.devices] + [s.driver_version, s.cuda_version]))\n"
    )
    environment = {"LD_LIBRARY_PATH": str(tmp_path), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=50, check=True
    )
    first, second, driver, cuda = json.loads(done.stdout)
    assert driver == "550.54.15"
    assert cuda is None
    assert Device.model_validate(first).usable is False
    device = Device.model_validate(second)
    assert (device.ordinal, device.physical_index, device.utilisation_percent) == (0, 1, 42.0)
    assert device.memory_total_bytes == 85_520_809_984
    assert device.memory_free_bytes == 85_520_809_984 - 2**30
    assert device.name == "NVIDIA H100 80GB HBM3"
