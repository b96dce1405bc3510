"""Where a rank's imports come from and what it leaves on record of them: the worker itself, in a Python of its own."""

import json
import os
import shutil
import subprocess
import venv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from runtime.config.plan import Interpreter
from runtime.layout import RunLayout
from runtime.loaded_modules import HOOKS, NAMES
from runtime.snapshots.surroundings import module_drift, package_drift, read_outside_modules
from tests.fakes.approvals import training_plan
from tools.probe import probe_interpreter

WORKER = Path(__file__).parents[3] / "runtime" / "worker.py"
# What setuptools writes for an editable install of a package that it maps by name.
FINDER = """
import sys
from importlib.machinery import PathFinder
from importlib.util import spec_from_file_location
MAPPING = {mapping!r}
class _EditableFinder:
    @classmethod
    def find_spec(cls, fullname, path=None, target=None):
        place = MAPPING.get(fullname)
        if place is None: return None
        return spec_from_file_location(fullname, place + "/__init__.py", submodule_search_locations=[place])
def install():
    sys.meta_path.append(_EditableFinder)
"""


@dataclass
class Tree:
    """A working tree, its copy in a run directory, and a Python in which the tree is installed editable."""

    root: Path
    python: Path

    @property
    def origin(self) -> Path:
        return self.root / "project"

    @property
    def layout(self) -> RunLayout:
        return RunLayout(self.root / "run")

    def copy(self) -> None:
        """What the server does when it prepares the run."""
        ignored = shutil.ignore_patterns("_version.py", "__pycache__")
        shutil.copytree(self.origin, self.layout.code, ignore=ignored)
        self.layout.work.mkdir()
        self.layout.plan.write_text(json.dumps({"code": {"origin": str(self.origin), "entry": "train.py"}}))

    def run(self, script: str, *, rank: int = 0, code: int = 0, **environment: str) -> list[str]:
        """The lines that this script prints when it runs as a rank."""
        (self.layout.code / "train.py").write_text(script)
        given = {
            "PATH": os.environ["PATH"],
            "FORERUN_RUN": "run-x",
            "FORERUN_RUN_DIR": str(self.layout.root),
            "RANK": str(rank),
            "WORLD_SIZE": "2",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        done = subprocess.run(
            [str(self.python), str(WORKER), str(self.layout.code / "train.py")],
            env=given | environment,
            cwd=self.layout.work,
            timeout=50,
            check=False,
        )
        assert done.returncode == code, self.layout.stderr(rank).read_text()
        text = self.layout.stdout(rank).read_text()
        self.layout.stdout(rank).unlink()
        return text.splitlines()

    def recorded(self) -> dict[str, str]:
        """Module -> file."""
        found = read_outside_modules(self.layout)
        assert found is not None
        return {module.name: module.path for module in found}


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter of its own: what is installed in it is for these tests alone."""
    root = tmp_path_factory.mktemp("venv")
    venv.create(root, with_pip=False, symlinks=True)
    return root / "bin" / "python"


@pytest.fixture
def tree(tmp_path: Path, python: Path) -> Iterator[Tree]:
    made = Tree(tmp_path, python)
    for name, text in {
        "src/pathpkg/__init__.py": "WHERE = __file__\n",
        "src/pathpkg/inner.py": "WHERE = __file__\n",
        "lib/mapped/__init__.py": "WHERE = __file__\n",
        "lib/mapped/inner.py": "WHERE = __file__\n",
        "space/part/module.py": "WHERE = __file__\n",
        "src/pathpkg/_version.py": "WHERE = __file__\n",
    }.items():
        path = made.origin / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    site = next((python.parent.parent / "lib").iterdir()) / "site-packages"
    (site / "__editable__.pathpkg-1.0.pth").write_text(f"{made.origin / 'src'}\n{made.origin / 'space'}\n")
    (site / "__editable___mapped_1_0_finder.py").write_text(
        FINDER.format(mapping={"mapped": str(made.origin / "lib" / "mapped")})
    )
    (site / "__editable__.mapped-1.0.pth").write_text(
        "import __editable___mapped_1_0_finder; __editable___mapped_1_0_finder.install()\n"
    )
    made.copy()
    yield made
    for path in site.iterdir():
        path.unlink() if path.is_file() else shutil.rmtree(path)


IMPORTS = "import pathpkg.inner, mapped.inner, part.module\n"
PRINTS = "for m in (pathpkg, pathpkg.inner, mapped, mapped.inner, part.module): print(m.WHERE)\n"


def test_editable_installs_of_the_tree_are_imported_from_the_snapshot(tree: Tree) -> None:
    lines = tree.run(IMPORTS + PRINTS)
    assert len(lines) == 5
    assert all(line.startswith(str(tree.layout.code)) for line in lines), lines
    assert tree.recorded() == {}


def test_a_file_of_the_tree_that_changed_since_is_not_what_runs(tree: Tree) -> None:
    (tree.origin / "lib/mapped/inner.py").write_text("raise SystemExit('the working tree runs')\n")
    tree.run(IMPORTS)


@pytest.mark.parametrize("how", ["PYTHONPATH", "sys.path"])
def test_a_path_into_the_tree_leads_to_the_snapshot_too(tree: Tree, how: str) -> None:
    places = str(tree.origin / "lib")
    lead = f"import sys; sys.path.insert(0, {places!r})\n" if how == "sys.path" else ""
    environment = {"PYTHONPATH": places} if how == "PYTHONPATH" else {}
    lines = tree.run(lead + "import mapped.inner; print(mapped.inner.WHERE)\n", **environment)
    assert lines == [str(tree.layout.code / "lib/mapped/inner.py")]


def test_a_spawned_child_imports_from_the_snapshot_too(tree: Tree) -> None:
    script = (
        IMPORTS
        + "import multiprocessing as mp\n"
        + "def show():\n    import pathpkg, mapped; print(pathpkg.WHERE); print(mapped.WHERE, flush=True)\n"
        + "if __name__ == '__main__':\n"
        + "    child = mp.get_context('spawn').Process(target=show); child.start(); child.join()\n"
        + "    raise SystemExit(child.exitcode)\n"
    )
    lines = tree.run(script)
    assert len(lines) == 2
    assert all(line.startswith(str(tree.layout.code)) for line in lines), lines


def test_what_git_ignores_still_comes_from_the_tree_and_is_on_record(tree: Tree) -> None:
    lines = tree.run("from pathpkg import _version; print(_version.WHERE)\n")
    assert lines == [str(tree.origin / "src/pathpkg/_version.py")]
    assert tree.recorded() == {"pathpkg._version": lines[0]}


def test_modules_from_elsewhere_are_recorded_with_their_digest(tree: Tree) -> None:
    (tree.root / "elsewhere").mkdir()
    helper = tree.root / "elsewhere" / "helper.py"
    helper.write_text("A = 1\n")
    tree.run(f"import sys, json, unittest; sys.path.append({str(helper.parent)!r}); import helper\n")
    found = read_outside_modules(tree.layout)
    assert found is not None
    assert [(m.name, m.path) for m in found] == [("helper", str(helper))]
    assert len(found[0].sha256) == 64


@pytest.mark.parametrize(
    ("ending", "code"),
    [("", 0), ("sys.exit(3)\n", 3), ("raise ValueError('x')\n", 1), ("import os; os.fork() or sys.exit(0)\n", 0)],
)
def test_the_record_is_written_however_the_script_ends(tree: Tree, ending: str, code: int) -> None:
    (tree.root / "late.py").write_text("A = 1\n")
    lead = (
        f"import atexit, sys\nsys.path.append({str(tree.root)!r})\n"
        "@atexit.register\ndef last():\n    import late\n"  # the script's own handlers may import as well
    )
    tree.run(lead + ending, code=code)
    assert set(tree.recorded()) == {"late"}


def test_ranks_that_load_other_modules_are_put_together(tree: Tree) -> None:
    for name in ("one", "two"):
        (tree.root / f"{name}.py").write_text("A = 1\n")
    lead = f"import sys; sys.path.append({str(tree.root)!r})\n"
    tree.run(lead + "import two\n", rank=1)
    assert read_outside_modules(tree.layout) is None  # without rank 0 there is no saying what is missing
    tree.run(lead + "import one\n")
    assert set(tree.recorded()) == {"one", "two"}


def test_a_record_that_is_none_is_none(tree: Tree) -> None:
    for content in ("", "{}", "[1]", '[{"name": "x"}]', '[{"name": "x", "path": "/x", "sha256": "zz"}]'):
        tree.layout.modules(0).write_text(content)
        assert read_outside_modules(tree.layout) is None or content == "{}"


def test_links_from_the_packages_to_elsewhere_do_not_hide_a_module(tree: Tree) -> None:
    site = next((tree.python.parent.parent / "lib").iterdir()) / "site-packages"
    (tree.root / "hidden.py").write_text("A = 1\n")
    (site / "hidden.py").symlink_to(tree.root / "hidden.py")
    tree.run("import hidden\n")
    assert tree.recorded() == {"hidden": str(tree.root / "hidden.py")}


def test_what_is_added_to_a_folder_of_pythonpath_after_the_smoke_run_is_named(tree: Tree) -> None:
    """A name that is put there later would come before an installed module, or run before the script."""
    elsewhere, absent, ours = tree.root / "elsewhere", tree.root / "absent", tree.origin / "lib"
    elsewhere.mkdir()
    tree.run("pass\n", PYTHONPATH=os.pathsep.join(map(str, (elsewhere, absent, ours, "relative"))))
    found = read_outside_modules(tree.layout)
    assert found is not None
    assert {(m.name, m.path) for m in found} == {(NAMES, str(elsewhere)), (NAMES, str(absent)), (HOOKS, str(ours))}
    assert module_drift(found) == []
    (ours / "more.py").write_text("")  # the tree goes on living: what runs is its copy
    (elsewhere / "notes.txt").write_text("")
    (elsewhere / "folder").mkdir()
    assert module_drift(found) == []
    (ours / "sitecustomize.py").write_text("")
    (elsewhere / "numpy").mkdir()
    (elsewhere / "numpy" / "__init__.py").write_text("")
    absent.mkdir()
    (absent / "usercustomize.cpython-311-x86_64-linux-gnu.so").write_text("")
    lines = module_drift(found)
    assert [line.split(":")[0] for line in lines] == [
        f"folder {place} of PYTHONPATH" for place in (absent, elsewhere, ours)
    ]
    assert "start-up hooks were added" in lines[2]


@pytest.mark.parametrize("name", ["evil.pth", "sitecustomize.py", "usercustomize/__init__.py"])
def test_a_start_up_file_added_to_the_packages_after_the_plan_is_named(tree: Tree, name: str) -> None:
    facts = probe_interpreter(str(tree.python))
    interpreter = Interpreter(executable=str(tree.python), version="", packages=facts.planned_packages)
    plan = training_plan().model_copy(update={"interpreter": interpreter})
    assert package_drift(plan) == []
    site = next((tree.python.parent.parent / "lib").iterdir()) / "site-packages"
    (site / name).parent.mkdir(exist_ok=True)
    (site / name).write_text("import os\n")
    (line,) = package_drift(plan)
    assert "start-up files (.pth, sitecustomize, usercustomize) were changed, added or removed" in line
    earlier = interpreter.model_copy(update={"packages": {"pathpkg": "1.0"}})  # a plan of before they were looked at
    assert "start-up" not in str(package_drift(plan.model_copy(update={"interpreter": earlier})))


def test_a_real_job_records_what_each_of_its_ranks_loaded_and_nothing_that_is_installed(
    runs: Any, tmp_path: Path
) -> None:
    for name in ("one", "two"):
        (tmp_path / f"{name}.py").write_text("A = 1\n")
    script = (
        f"import sys; sys.path.append({str(tmp_path)!r})\n"
        "import torch, numpy, part\nfrom runtime import Accelerator\n"
        "accelerator = Accelerator(); accelerator.wait_for_everyone()\n"
        "__import__(('one', 'two')[accelerator.process_index]); accelerator.end_training()\n"
    )
    run = runs.planned(script, num_processes=2, files={"part.py": ""}).submit()
    assert run.result().state == "succeeded", run.text(run.layout.stderr(0))
    found = read_outside_modules(run.layout)
    assert found is not None
    assert [module.name for module in found] == ["one", "two"]
