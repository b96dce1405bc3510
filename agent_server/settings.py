"""Where this server keeps its things: the only reader of the environment in agent_server."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from runtime.env import RUN_MARKER
from runtime.errors import ConfigurationError

# Set by coding agents for the commands they run. A heuristic: an agent can unset them, and not every agent sets one.
AGENT_VARIABLES = (
    "AGENT",
    "AI_AGENT",
    "ANTIGRAVITY_AGENT",
    "AUGMENT_AGENT",
    "CLAUDECODE",
    "CLAUDE_CODE_ENTRYPOINT",
    "CLINE_ACTIVE",
    "CODEX_SANDBOX",
    "CODEX_SANDBOX_NETWORK_DISABLED",
    "CODEX_THREAD_ID",
    "CURSOR_AGENT",
    "GEMINI_CLI",
    "GOOSE_TERMINAL",
    "OPENCODE",
    RUN_MARKER,
)


def _absolute(path: Path) -> Path:
    try:
        return path.expanduser().absolute()
    except RuntimeError as error:  # ~name of nobody
        raise ValueError(f"{path}: {error}") from error


Directory = Annotated[Path, AfterValidator(_absolute)]


class Settings(BaseSettings):
    """FORERUN_STATE_DIR, FORERUN_KEYS_DIR and FORERUN_DATABASE_URL, or their defaults.

    Attributes:
        state_dir: database, run directories, code snapshots and the server's report key.
        keys_dir: the private keys of approvers on this machine; an agent has no business there.
        database_url: SQLAlchemy URL; empty means SQLite in state_dir.
    """

    model_config = SettingsConfigDict(env_prefix="FORERUN_", env_ignore_empty=True, frozen=True, extra="forbid")

    state_dir: Directory = Path("~/.local/state/forerun").expanduser()
    keys_dir: Directory = Path("~/.config/forerun/keys").expanduser()
    database_url: str = ""

    @property
    def url(self) -> str:
        """The database's URL, the default resolved."""
        return self.database_url or f"sqlite:///{self.state_dir / 'forerun.db'}"

    @property
    def runs_dir(self) -> Path:
        return self.state_dir / "runs"

    @property
    def snapshots_dir(self) -> Path:
        return self.state_dir / "snapshots"

    @property
    def secret_key(self) -> Path:
        """The key under which the values of secret variables are hashed into plans."""
        return self.state_dir / "secret-values.key"

    @property
    def report_key(self) -> Path:
        """The server's own signing key for reports; it approves nothing."""
        return self.state_dir / "report-key.pem"


def load_settings(*, state_dir: Path | None = None, keys_dir: Path | None = None) -> Settings:
    """Settings from the environment; the arguments win over it.

    Raises:
        ConfigurationError: a variable holds what is no path or URL.
    """
    given = {"state_dir": state_dir, "keys_dir": keys_dir}
    try:
        return Settings(**{name: path for name, path in given.items() if path is not None})  # type: ignore[arg-type]  # each is a Path
    except ValidationError as error:
        problems = "; ".join(f"FORERUN_{str(e['loc'][0]).upper()}: {e['msg']}" for e in error.errors() if e["loc"])
        raise ConfigurationError(
            f"the settings are wrong: {problems}", next_step="unset or mend the named variables"
        ) from error


def agent_variables(environ: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """The variables in the environment by which agents give themselves away; empty if none is set."""
    source = os.environ if environ is None else environ
    return tuple(name for name in AGENT_VARIABLES if source.get(name))
