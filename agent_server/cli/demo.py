"""`forerun init-demo`: a state directory whose approvals are rehearsals."""

import shlex
import time
from pathlib import Path

from agent_server.settings import load_settings
from agent_server.store.sql import SqlStore
from tools.domain.errors import Refused

from .output import say


def init_demo(directory: Path) -> None:
    """Make the store of a simulated state directory; its keys lie in it too.

    Raises:
        Refused: the directory is a normal state directory.
    """
    settings = load_settings(state_dir=directory, keys_dir=directory / "keys")
    store = SqlStore(f"sqlite:///{settings.state_dir / 'forerun.db'}", clock=time.time, create_as="simulated")
    mode = store.mode
    store.close()
    if mode != "simulated":
        raise Refused(
            f"{settings.state_dir} is a normal state directory, and stays one", next_step="name a new directory"
        )
    say("Approvals here are SIMULATED: they are refused everywhere else.", style="bold magenta")
    say(f"export FORERUN_STATE_DIR={shlex.quote(str(settings.state_dir))}")
    say(f"export FORERUN_KEYS_DIR={shlex.quote(str(settings.keys_dir))}")
