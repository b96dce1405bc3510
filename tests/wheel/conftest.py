"""The built wheel, installed into an environment of its own that sees this one's other packages."""

import subprocess
import sys
import sysconfig
import venv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from runtime.env import current_environment

REPOSITORY = Path(__file__).parents[2]
BUILD = "import sys; from hatchling.build import build_wheel; print(build_wheel(sys.argv[1]))"
DEADLINE_S = 58.0


@dataclass(frozen=True)
class Installed:
    """A virtual environment with forerun from its wheel; `directory` is a user's repository."""

    bin: Path
    wheel: Path
    directory: Path

    def write(self, files: Mapping[str, str]) -> None:
        for name, text in files.items():
            path = self.directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def run(self, *words: str, **environment: str) -> tuple[int, str, str]:
        """Words that begin with a program of the environment, in the user's repository."""
        kept = {name: value for name, value in current_environment().items() if not name.startswith("FORERUN_")}
        kept.pop("PYTHONPATH", None)
        given = {"HOME": str(self.directory), "OMP_NUM_THREADS": "1", **environment}
        done = subprocess.run(
            [str(self.bin / words[0]), *words[1:]],
            cwd=self.directory,
            env=kept | given,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
        )
        return done.returncode, done.stdout, done.stderr

    def python(self, code: str) -> str:
        """What this code prints outside of the repository; a failure is the test's."""
        done = subprocess.run(
            [str(self.bin / "python"), "-I", "-c", code], capture_output=True, text=True, timeout=DEADLINE_S
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("wheel")
    _run([sys.executable, "-c", BUILD, str(target)], directory=REPOSITORY)
    (built,) = target.glob("*.whl")
    return built


@pytest.fixture(scope="session")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("environment")
    venv.create(root, with_pip=False, symlinks=True)
    python = root / "bin" / "python"
    options = ["--quiet", "--disable-pip-version-check", "--no-deps", "--no-index", "--no-compile"]
    _run([sys.executable, "-m", "pip", "--python", str(python), "install", *options, str(wheel)], directory=root)
    (site,) = (root / "lib").glob("python*/site-packages")
    (site / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")  # its own .pth files do not count there
    return root


@pytest.fixture
def installed(environment: Path, wheel: Path, tmp_path: Path) -> Installed:
    return Installed(environment / "bin", wheel, tmp_path)


def _run(words: list[str], *, directory: Path) -> None:
    done = subprocess.run(
        words,
        cwd=directory,
        env={**current_environment(), "PYTHONDONTWRITEBYTECODE": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
