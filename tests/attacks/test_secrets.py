"""Secrets and hostile text through every output of a real server and a real run; the job gets the real values."""

import hashlib
import json
import shlex
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from agent_server.store.sql import SqlStore
from runtime.config.order import LaunchSpec
from runtime.launchers.local import LocalLauncher
from runtime.layout import RunLayout
from runtime.records import read_events
from tests.fakes.approvals import Clock, Human, cost_estimate, smoke_result
from tests.fakes.wire import Wire, clean_environment, server_argv
from tools.domain.plan_state import PlanState
from tools.request_approval import shown_text

FILES = Path(__file__).parent / "files"
FORMS = (FILES / "cmd.txt").read_text().splitlines()
HARMLESS = shlex.split(FORMS[8])
TOKEN = "SECRET-ddd444"
SCRIPT = f"""
import hashlib, os, pathlib, sys
print("token", hashlib.sha256(os.environ["MY_TOKEN"].encode()).hexdigest())
print("cmdline", pathlib.Path("/proc/self/cmdline").read_bytes().decode().split(chr(0)), flush=True)
for name in ("secrets.log", "escapes.log", "cmd.txt"):
    sys.stdout.buffer.write(pathlib.Path({str(FILES)!r}, name).read_bytes())
sys.stdout.flush()
print("warning: HF_TOKEN=" + os.environ["MY_TOKEN"], file=sys.stderr)
raise ValueError("\\x1b[2Jcannot log in with api_key=" + os.environ["MY_TOKEN"] + " \\u202eevil")
"""
RAW = [chr(c) for c in (0x1B, 0x9B, 0x07, 0x08, 0x202E, 0x200B)]


@dataclass
class Site:
    """A server with a secret in its environment, on a state directory that the user had made open to all."""

    directory: Path
    servers: list[Wire] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    @property
    def state(self) -> Path:
        return self.directory / "state"

    def serve(self) -> Wire:
        environment = clean_environment() | {"MY_TOKEN": TOKEN}
        self.servers.append(Wire(server_argv(self.state, self.directory / "project"), environment=environment))
        return self.servers[-1]

    def inputs(self, **changes: Any) -> dict[str, Any]:
        settings = ["num_processes=1", "device=cpu", "seed=none", "wall_time_s=100", "pass_env=MY_TOKEN"]
        return {
            "script": str(self.directory / "project" / "train.py"),
            "args": HARMLESS,
            "smoke_args": ["--small"],
            "python": sys.executable,
            "settings": settings,
        } | changes

    def with_store(self, act: Callable[[SqlStore], Any]) -> Any:
        store = SqlStore(f"sqlite:///{self.state / 'forerun.db'}", clock=time.time)
        try:
            return act(store)
        finally:
            store.close()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "train.py").write_text(SCRIPT)
    made.state.mkdir()
    made.state.chmod(0o755)
    yield made
    for server in made.servers:
        server.kill()


def wire_text(site: Site) -> str:
    """Everything that the servers said, as a client reads it."""
    texts: list[str] = []
    for server in site.servers:
        for line in server.lines:
            texts += strings(json.loads(line))
        texts.append(b"".join(server.stderr).decode())
    return "\n".join(texts)


def strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from strings(name)
            yield from strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from strings(item)


def assert_clean(text: str, what: str) -> None:
    place = text.find("SECRET-")
    assert place < 0, f"{what}: {text[max(0, place - 80) : place + 60]!r}"
    assert not [mark for mark in RAW if mark in text], what


def is_open_to_others(path: Path, top: Path) -> bool:
    """Whether another account can read this file, `top` being reachable."""
    folders = [folder for folder in path.parents if folder == top or top in folder.parents]
    return bool(path.stat().st_mode & stat.S_IROTH) and all(f.stat().st_mode & stat.S_IXOTH for f in folders)


@pytest.mark.multiprocess
def test_a_secret_in_the_inputs_is_refused_and_neither_repeated_nor_kept(site: Site) -> None:
    server = site.serve()
    settings = site.inputs()["settings"]
    tries: list[dict[str, Any]] = [{"args": shlex.split(form)} for form in FORMS[:8]]
    tries += [{"smoke_args": shlex.split(FORMS[0])}, {"settings": [*settings, f"env={FORMS[3].split()[0]}"]}]
    for changes in tries:
        assert "SECRET-" in str(changes)
        result = server.tool("validate_inputs", **site.inputs(**changes))
        assert result["isError"], changes
        assert "pass_env" in result["content"][0]["text"], changes
    result = server.tool("validate_inputs", **site.inputs())
    assert not result.get("isError"), result["content"][0]["text"]
    assert result["structuredContent"]["state"] in ("valid", "drafted")
    (record,) = site.with_store(lambda store: list(store.plans(limit=9)))  # nothing was kept of the refused ones
    if record.plan is not None:
        assert list(record.plan.argv) == HARMLESS
    assert_clean(wire_text(site), "the wire")
    for path in site.state.rglob("*"):
        if path.is_file():
            assert b"SECRET-" not in path.read_bytes(), path


@pytest.mark.multiprocess
def test_a_run_gets_the_real_values_and_no_output_shows_them(site: Site) -> None:
    server = site.serve()
    found = server.data("validate_inputs", **site.inputs())
    if found["state"] == "drafted":
        answers = [f"{q['id']}={q.get('proposal') or 'none'}" for q in found["questions"]]
        found = server.data("answer_questions", plan_id=found["plan_id"], answers=answers, source="user")
    plan_id = found["plan_id"]
    site.with_store(lambda store: give_evidence(store, plan_id))
    asked = server.data("request_approval", plan_id=plan_id, reason=f"use {FORMS[1]} \x1b[2J\u202e and go")
    shown, command = site.with_store(lambda store: approve(store, asked["request_id"]))
    assert_clean(shown.replace("\n", ""), "the approval text")
    assert "MY_TOKEN (bound by a keyed hash)" in shown

    launched = server.data("launch_training", plan_id=plan_id)
    run_id = launched["run_id"]
    ended = monitor(server, run_id)
    assert ended["state"] == "failed"
    pages = [server.data("read_logs", run_id=run_id, stream=stream, cursor="") for stream in ("stdout", "stderr")]
    diagnosis = server.data("diagnose_failure", run_id=run_id)
    assert "ValueError" in json.dumps(diagnosis)
    server.data("provenance_report", run_id=run_id, summary=f"It ran with {FORMS[2]} \x1b[2J.")
    server.data("list_work", kind="runs")
    assert "rm -rf /tmp/x" in json.dumps(pages)  # what would have been overwritten is there
    assert "max_tokens" in json.dumps(pages)

    layout = RunLayout(site.state / "runs" / run_id)
    output = layout.stdout(0).read_text(errors="replace").splitlines()
    assert f"token {hashlib.sha256(TOKEN.encode()).hexdigest()}" in output  # the job had the real one
    (line,) = [line for line in output if line.startswith("cmdline ")]
    assert line.endswith(f"{[str(layout.code / 'train.py'), *HARMLESS, '']!r}"[1:])
    (started,) = [event for event in read_events(layout.events) if event.event == "job_started"]
    assert started.details["argv"] == [word.replace("/RUN/", f"/{run_id}/") for word in command.argv]

    assert_clean(wire_text(site), "the wire")
    num_reports = 0
    own_output = {layout.logs, layout.work}
    for path in site.state.rglob("*"):
        if not path.is_file() or path.is_symlink():
            continue
        if layout.report in path.parents:
            num_reports += 1
            assert_clean(path.read_text().replace("\n", ""), path.name)
        text = path.read_bytes()
        if b"SECRET-" in text:  # what the job itself printed, in its own files
            assert own_output & set(path.parents), path
        assert not is_open_to_others(path, site.state) or b"SECRET-" not in text, path
        inside = path.relative_to(site.state).parts
        assert not is_open_to_others(path, site.state) or inside[0] not in ("runs", "snapshots"), path
    assert num_reports >= 3
    assert stat.S_IMODE(layout.root.stat().st_mode) == 0o700
    assert stat.S_IMODE((site.state / "secret-values.key").stat().st_mode) == 0o600
    assert stat.S_IMODE((site.state / "forerun.db").stat().st_mode) == 0o600


def give_evidence(store: SqlStore, plan_id: str) -> None:
    """A smoke run and an estimate that were not made: the run itself is what counts here."""
    record = store.plan(plan_id)
    assert record.plan is not None
    assert set(record.plan.inherited_hashes) == {"MY_TOKEN"}
    smoked = record.model_copy(update={"state": PlanState.SMOKED, "smoke": smoke_result(record.plan)})
    store.save_plan(smoked, expect=record.state)
    estimated = smoked.model_copy(update={"state": PlanState.ESTIMATED, "estimate": cost_estimate(record.plan)})
    store.save_plan(estimated, expect=PlanState.SMOKED)


def approve(store: SqlStore, request_id: str) -> tuple[str, LaunchSpec]:
    """The human approves; what was shown, and the command in it."""
    request = store.request(request_id)
    record = store.plan(request.plan_id)
    assert record.plan is not None
    layout = RunLayout(Path(store.identity.split(" (inode")[0]).parent / "runs" / "RUN")
    spec = LocalLauncher().render(record.plan, layout, run_id="RUN", kind="full")
    Human(store, Clock(time.time())).enroll().decide(request)
    return shown_text(record, request, spec=spec, differences=()), spec


def monitor(server: Wire, run_id: str) -> dict[str, Any]:
    deadline = time.monotonic() + 100
    while True:
        found = server.data("monitor_run", id=run_id, wait_s=20)
        if found["state"] not in ("launching", "running"):
            return found
        assert time.monotonic() < deadline, found


@pytest.mark.multiprocess
def test_a_dry_run_shows_no_secret(site: Site) -> None:
    words = [word for form in FORMS for word in shlex.split(form)]
    script = str(site.directory / "project" / "train.py")
    done = subprocess.run(
        [sys.executable, "-m", "agent_server.cli.app", "launch", "--cpu", "--dry-run", script, *words],
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (done.returncode, "dry run" in done.stdout) == (0, True), done.stderr
    assert_clean(done.stdout.replace("\n", "") + done.stderr, "the dry run")
    assert all(word in done.stdout for word in HARMLESS)
