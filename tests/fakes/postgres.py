"""A PostgreSQL server of the tests' own, on a socket in a directory that is removed with it."""

import getpass
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from agent_server.store.sql import SqlStore

_DEADLINE_S = 60.0
_OPTIONS = ("fsync=off", "synchronous_commit=off", "full_page_writes=off", "shared_buffers=16MB", "max_connections=60")


def binaries() -> Path | None:
    """Where the newest installed server has its programs; None if none is installed."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    return found[-1].parent if found else None


class Postgres:
    """A running server. It will not run as root, so root starts it as the user `postgres`."""

    def __init__(self, programs: Path) -> None:
        self._programs = programs
        self._user = "postgres" if os.geteuid() == 0 else getpass.getuser()
        self.directory = Path(tempfile.mkdtemp(prefix="forerun-pg.", dir="/tmp"))  # sockets have short paths
        if os.geteuid() == 0:
            owner = pwd.getpwnam(self._user)
            os.chown(self.directory, owner.pw_uid, owner.pw_gid)
        self._count = 0
        self._run("initdb", "-D", str(self._data), "-A", "trust", "-U", "app", "--no-sync", "-E", "UTF8")
        self.start()

    @property
    def _data(self) -> Path:
        return self.directory / "data"

    def start(self) -> None:
        settings = " ".join(f"-c {option}" for option in _OPTIONS)
        options = f"-c listen_addresses='' -k {self.directory} {settings}"
        self._run("pg_ctl", "-D", str(self._data), "-l", str(self.directory / "log"), "-w", "-o", options, "start")

    def stop(self, *, how: str = "fast") -> None:
        """`immediate` loses what was not yet written to disk, for this server need not survive."""
        self._run("pg_ctl", "-D", str(self._data), "-m", how, "-w", "stop")

    def remove(self) -> None:
        try:
            self.stop(how="immediate")
        finally:
            shutil.rmtree(self.directory)

    def new_database(self) -> str:
        """The URL of an empty database."""
        self._count += 1
        name = f"forerun{self._count}"
        self._run("createdb", "-h", str(self.directory), "-U", "app", name)
        return f"postgresql://app@/{name}?host={self.directory}"

    def store(self, clock: Callable[[], float], *, busy_timeout_s: float = 10.0) -> SqlStore:
        """A store in a database of its own."""
        return SqlStore(self.new_database(), clock=clock, busy_timeout_s=busy_timeout_s)

    def _run(self, program: str, *arguments: str) -> None:
        argv: Sequence[str] = (str(self._programs / program), *arguments)
        if os.geteuid() == 0:
            owner = pwd.getpwnam(self._user)
            who = (f"--reuid={owner.pw_uid}", f"--regid={owner.pw_gid}", "--clear-groups")
            argv = ("setpriv", *who, *argv)
        environment = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"}
        log = self.directory / "programs.log"
        with log.open("ab") as output:  # no pipe: the server inherits what its starter has open
            done = subprocess.run(
                argv, env=environment, cwd="/", stdout=output, stderr=output, timeout=_DEADLINE_S, check=False
            )
        assert done.returncode == 0, log.read_text()[-2000:]
