"""The wheel in an environment of its own: what it holds, and a user's repository that owns our folder names."""

import zipfile
from typing import Any

import pytest

pytestmark = pytest.mark.multiprocess

SCRIPT = """
import sys
import runtime.engine, tools.hammer
sys.stdout.write(f"{runtime.engine.WHOSE} {tools.hammer.WHOSE} {sys.argv[1:]}\\n")
"""
THEIRS = {
    "runtime/engine.py": "WHOSE = 'their runtime'\n",
    "tools/hammer.py": "WHOSE = 'their tools'\n",
    "train.py": SCRIPT,
}
PACKAGES = {"runtime/__init__.py": "", "tools/__init__.py": ""}
LINE = "their runtime their tools ['--lr', '0.1']\n"
OURS = "from runtime import Accelerator\nprint(Accelerator.__module__)\n"


def test_the_wheel_holds_the_three_packages_and_their_data(installed: Any) -> None:
    names = zipfile.ZipFile(installed.wheel).namelist()
    roots = {name.partition("/")[0] for name in names}
    assert {root for root in roots if not root.endswith(".dist-info")} == {"agent_server", "runtime", "tools"}
    assert "tools/__init__.py" not in names  # a package there would hide a user's own folder
    for name in ("runtime/worker.py", "runtime/launchers/torchrun_engine.py", "runtime/selftest/job.py"):
        assert name in names
    site = installed.python("import runtime; print(runtime.__file__)")
    assert site.startswith(str(installed.bin.parent))


@pytest.mark.parametrize("packages", [{}, PACKAGES], ids=["folders", "packages"])
def test_a_repository_that_owns_our_names_runs_as_under_torchrun(installed: Any, packages: dict[str, str]) -> None:
    installed.write(THEIRS | packages)
    arguments = ("train.py", "--lr", "0.1")
    code, stdout, stderr = installed.run("forerun", "launch", "--cpu", "--num_processes", "2", *arguments)
    assert (code, sorted(stdout.splitlines(True))) == (0, [f"[rank{rank}] {LINE}" for rank in (0, 1)]), stderr
    if packages:  # under plain python an installed package goes before a folder without __init__.py
        code, stdout, stderr = installed.run("python", *arguments)
        assert (code, stdout) == (0, LINE), stderr


def test_tools_of_a_user_are_found_outside_our_launcher_too(installed: Any) -> None:
    installed.write({"tools/hammer.py": "WHOSE = 'theirs'\n", "use.py": "import tools.hammer as h; print(h.WHOSE)\n"})
    assert installed.run("python", "use.py")[:2] == (0, "theirs\n")


def test_on_pythonpath_theirs_wins_in_the_job_and_the_launcher_keeps_its_own(installed: Any) -> None:
    installed.write({f"lib/{name}": text for name, text in (THEIRS | PACKAGES).items() if name != "train.py"})
    installed.write({"train.py": SCRIPT})
    place = str(installed.directory / "lib")
    code, stdout, stderr = installed.run("forerun", "launch", "--cpu", "train.py", "--lr", "0.1", PYTHONPATH=place)
    assert (code, stdout) == (0, LINE), stderr


def test_a_script_that_wants_ours_gets_ours_unless_a_runtime_of_its_own_lies_beside_it(installed: Any) -> None:
    installed.write({"train.py": OURS})
    code, stdout, stderr = installed.run("forerun", "launch", "--cpu", "train.py")
    assert (code, stdout) == (0, "runtime.accelerator\n"), stderr
    installed.write({"runtime/__init__.py": ""})
    code, stdout, stderr = installed.run("forerun", "launch", "--cpu", "train.py")
    assert (code, stdout) == (1, "")
    assert "cannot import name 'Accelerator' from 'runtime'" in stderr
    assert str(installed.directory / "runtime") in stderr


@pytest.mark.parametrize("words", [("forerun", "--help"), ("forerun", "version"), ("forerun", "launch", "--help")])
def test_the_command_starts_among_hostile_folders(installed: Any, words: tuple[str, ...]) -> None:
    bad = "raise SystemExit('a module of the working directory was imported')\n"
    names = ("runtime/__init__.py", "tools/__init__.py", "agent_server/__init__.py", "typer.py", "pydantic.py")
    installed.write(dict.fromkeys(names, bad))
    code, stdout, stderr = installed.run(*words)
    assert code == 0, stderr
    assert stdout
