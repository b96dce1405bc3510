"""Settings come from the environment, are absolute, and say what is wrong; agents' shells are recognised."""

from pathlib import Path

import pytest

from agent_server.approvals.request import approve_command
from agent_server.settings import AGENT_VARIABLES, agent_variables, load_settings
from runtime.errors import ConfigurationError


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("STATE_DIR", "KEYS_DIR", "DATABASE_URL"):
        monkeypatch.delenv(f"FORERUN_{name}", raising=False)


def test_everything_lies_below_the_state_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FORERUN_STATE_DIR", str(tmp_path))
    settings = load_settings()
    assert settings.url == f"sqlite:///{tmp_path}/forerun.db"
    for path in (settings.runs_dir, settings.snapshots_dir, settings.report_key):
        assert tmp_path in path.parents
    assert tmp_path not in settings.keys_dir.parents, "private keys of humans do not lie with the server's things"


def test_paths_are_absolute_wherever_the_server_starts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FORERUN_STATE_DIR", "state")
    monkeypatch.setenv("FORERUN_KEYS_DIR", "~/keys")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    settings = load_settings()
    assert (settings.state_dir, settings.keys_dir) == (tmp_path / "state", tmp_path / "home" / "keys")


def test_arguments_win_over_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FORERUN_STATE_DIR", "/elsewhere")
    assert load_settings(state_dir=tmp_path).state_dir == tmp_path


def test_a_workers_variables_are_no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORERUN_RUN", "run-0000000000")
    load_settings()


def test_a_path_that_is_none_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORERUN_STATE_DIR", "~no-such-user/state")
    with pytest.raises(ConfigurationError, match=r"FORERUN_STATE_DIR: .*no-such-user"):
        load_settings()


def test_an_empty_variable_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    default = load_settings().state_dir
    monkeypatch.setenv("FORERUN_STATE_DIR", "")
    assert load_settings().state_dir == default


@pytest.mark.parametrize("name", AGENT_VARIABLES)
def test_agents_give_themselves_away(name: str) -> None:
    assert agent_variables({name: "1", "PATH": "/bin"}) == (name,)
    assert agent_variables({name: "", "PATH": "/bin"}) == ()


def test_the_command_names_only_what_is_not_the_default(tmp_path: Path) -> None:
    assert approve_command(load_settings(), "req-0000000000") == "forerun approve req-0000000000"
    settings = load_settings(state_dir=tmp_path / "a b", keys_dir=tmp_path / "k")
    assert approve_command(settings, "req-0000000000") == (
        f"forerun --state-dir '{tmp_path}/a b' --keys-dir {tmp_path}/k approve req-0000000000"
    )
