"""settings: how the run is laid out and limited. Each value keeps who said it; nothing that matters is guessed."""

import json
import math
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from runtime.config.plan import Origin, Setting
from runtime.launchers.registry import launcher_names, launchers_of_several_nodes
from runtime.launchers.slurm_script import SETTINGS as BATCH_SETTINGS

from ..domain.findings import Answer, Question
from .notes import Notes, nearest

DEVICES = ("cpu", "cuda", "mps", "xla")
NONE_WORDS = ("none", "no")


MAX_SEED = 2**53 - 1  # JSON holds no larger integer exactly


@dataclass(frozen=True)
class _Number:
    """A number with its bounds (both allowed)."""

    low: float
    high: float
    whole: bool = True
    optional: bool = False

    def words(self) -> str:
        kind = "an integer" if self.whole else "a number"
        extra = ", or none" if self.optional else ""
        return f"{kind} from {_bound(self.low)} to {_bound(self.high)}{extra}"


def _bound(value: float) -> str:
    return str(value) if isinstance(value, int) and value <= MAX_SEED else f"{value:g}"


_NUMBERS = {
    "num_processes": _Number(1, 4096),
    "num_nodes": _Number(1, 1024),
    "seed": _Number(0, MAX_SEED, optional=True),
    "wall_time_s": _Number(1, 90 * 86_400, whole=False),
    "max_retries": _Number(0, 10),
    "max_cost": _Number(0, 1e9, whole=False),
    "disk_gib": _Number(0.001, 1_000_000, whole=False),
    "smoke_steps": _Number(6, 10_000),
    "smoke_wall_time_s": _Number(1, 86_400, whole=False),
}
DEFAULTS: dict[str, Any] = {
    "num_nodes": 1,
    "max_retries": 0,
    "disk_gib": 20.0,
    "smoke_steps": 12,
    "smoke_wall_time_s": 300.0,
    "loss": "loss",
    "launcher": "local",
}
PRECISIONS = ("no", "fp16", "bf16", "fp8")
YES_NO = ("yes", "no")
_OTHERS = ("device", "mixed_precision", "env", "pass_env", "loss", "launcher", "personal_data")
KEYS = (*_NUMBERS, *_OTHERS, *BATCH_SETTINGS)
_TWICE = object()
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


@dataclass
class Settings:
    """Checked values and their origins. A name that nobody gave is absent, and `is_set` says so."""

    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, Origin] = field(default_factory=dict)

    def is_set(self, name: str) -> bool:
        return name in self.values

    def get(self, name: str) -> Any:
        return self.values.get(name)

    def put(self, name: str, value: Any, origin: Origin) -> None:
        self.values[name] = value
        self.origins[name] = origin

    def recorded(self) -> tuple[Setting, ...]:
        """For the plan: everything but the environment, which the plan carries itself."""
        return tuple(
            Setting(name=name, value=_words(value), origin=self.origins[name])
            for name, value in sorted(self.values.items())
            if name not in ("env", "pass_env")
        )


def _words(value: Any) -> str:
    if value is None:
        return "none"
    return f"{value:g}" if isinstance(value, float) and value == int(value) else str(value)


def read_settings(given: Mapping[str, Any], answers: Sequence[Answer], notes: Notes) -> Settings:
    """Check the settings given, then the answers to questions about settings; a setting given outweighs an answer."""
    settings = Settings()
    for name, value in _with_variables(given).items():
        if name not in KEYS:
            hint = f"{nearest(name, KEYS)}; all settings: {', '.join(KEYS)}"
            if _VARIABLE.match(name) and name.isupper():
                hint = f"an environment variable is written env.{name}=VALUE"
            notes.error("unknown_setting", f"there is no setting {name!r}", hint)
            continue
        _read(settings, name, value, "argument", notes)
    for answer in answers:
        if answer.question_id in KEYS and not settings.is_set(answer.question_id):
            origin: Origin = "user" if answer.source == "user" else "assumption"
            _read(settings, answer.question_id, answer.value, origin, notes)
    launcher, several = settings.get("launcher") or DEFAULTS["launcher"], launchers_of_several_nodes()
    if settings.get("num_nodes") not in (None, 1) and launcher not in several:
        text = f"num_nodes={settings.get('num_nodes')} with launcher {launcher}, which starts one node"
        notes.error(
            "bad_setting", text, f"leave num_nodes out, or take a launcher of several nodes: {', '.join(several)}"
        )
    return settings


def _with_variables(given: Mapping[str, Any]) -> dict[str, Any]:
    """`env.NAME` beside `env`: one variable as a setting of its own."""
    single = {name[4:]: value for name, value in given.items() if name.startswith("env.")}
    rest = {name: value for name, value in given.items() if not name.startswith("env.")}
    if single:
        whole = rest.get("env", {})
        whole = _parse_pairs(whole) if isinstance(whole, str) else whole
        if isinstance(whole, Mapping):
            rest["env"] = _each_once([*whole.items(), *single.items()])
        else:
            rest["env"] = whole
    return rest


def fill_defaults(settings: Settings) -> None:
    for name, value in DEFAULTS.items():
        if not settings.is_set(name):
            settings.put(name, value, "default")


def _read(settings: Settings, name: str, value: Any, origin: Origin, notes: Notes) -> None:
    if name in _NUMBERS:
        ok, number = _number(_NUMBERS[name], value)
        if not ok:
            code = "zero_processes" if name == "num_processes" else "bad_setting"
            notes.error(code, f"{name}={value!r}", f"allowed: {_NUMBERS[name].words()}")
            return
        settings.put(name, number, origin)
    elif name == "env":
        _put_pairs(settings, value, origin, notes)
    elif name == "pass_env":
        _put_names(settings, value, origin, notes)
    else:
        allowed = {
            "device": DEVICES,
            "launcher": tuple(launcher_names()),
            "mixed_precision": PRECISIONS,
            "personal_data": YES_NO,
        }.get(name)
        if name == "mixed_precision" and (value is False or str(value).lower() in ("no", "off", "false")):
            value = "no"  # unquoted YAML makes a boolean of the word
        if name == "personal_data" and isinstance(value, bool):
            value = "yes" if value else "no"
        if not isinstance(value, str) or not value or (allowed and value not in allowed):
            hint = f"allowed: {', '.join(allowed)}" if allowed else "allowed: the name of a metric"
            notes.error("bad_setting", f"{name}={value!r}", hint)
            return
        settings.put(name, value, origin)


def _number(kind: _Number, value: Any) -> tuple[bool, int | float | None]:
    if kind.optional and isinstance(value, str) and value.strip().lower() in NONE_WORDS:
        return True, None
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return False, None
    try:
        number = float(value) if not kind.whole or isinstance(value, float) else int(value)
    except ValueError:
        return False, None
    if not math.isfinite(number) or not kind.low <= number <= kind.high or (kind.whole and number != int(number)):
        return False, None
    return True, int(number) if kind.whole else float(number)


def _put_pairs(settings: Settings, value: Any, origin: Origin, notes: Notes) -> None:
    pairs = value
    if isinstance(value, str):
        pairs = _parse_pairs(value)
    if not isinstance(pairs, Mapping):
        notes.error("bad_setting", "env is no mapping of names to values", "allowed: {'NAME': 'value'} or NAME=value")
        return
    twice = [name for name, text in pairs.items() if text is _TWICE]
    if twice:
        text = f"env names {', '.join(map(repr, twice))} twice"
        notes.error("bad_setting", text, "each variable once, so that there is one value to approve")
        return
    bad = [name for name in pairs if not isinstance(name, str) or not _VARIABLE.match(name)]
    nul = [name for name, text in pairs.items() if "\0" in str(text)]
    if bad or nul:
        notes.error("bad_setting", f"env holds bad names or values: {', '.join(map(repr, bad + nul))}", "A-Z, 0-9, _")
        return
    settings.put("env", {name: _env_text(text) for name, text in pairs.items()}, origin)


def _env_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _parse_pairs(text: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_each_once)
    except (ValueError, RecursionError):
        pass
    try:
        words = shlex.split(text)
    except ValueError:
        return None
    return _each_once([word.split("=", 1) for word in words]) if all("=" in word for word in words) else None


def _each_once(pairs: Iterable[Sequence[Any]]) -> dict[str, Any]:
    """The mapping; a name that is given twice has no value but `_TWICE`."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        found[name] = _TWICE if name in found else value
    return found


def _put_names(settings: Settings, value: Any, origin: Origin, notes: Notes) -> None:
    names = value.replace(",", " ").split() if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not all(isinstance(n, str) and _VARIABLE.match(n) for n in names):
        notes.error("bad_setting", f"pass_env={value!r}", "allowed: a list of variable names")
        return
    settings.put("pass_env", tuple(dict.fromkeys(names)), origin)


def ask_for_settings(settings: Settings, *, seed_known: bool, cuda_devices: int, num_cpus: int) -> list[Question]:
    """The questions that the settings leave open."""
    questions = []
    if not seed_known and not settings.is_set("seed"):
        text = "Which random seed? The script's results depend on it; `none` if the script fixes its own."
        questions.append(Question(id="seed", text=text, proposal="0"))
    if cuda_devices and not settings.is_set("device"):
        text = f"Train on the CPU or on the {cuda_devices} GPU(s)? GPUs may be shared with others."
        questions.append(Question(id="device", text=text, allowed=("cpu", "cuda"), proposal="cuda"))
    if not settings.is_set("num_processes"):
        on_gpu = cuda_devices and settings.get("device") != "cpu"
        proposal = cuda_devices if on_gpu else 1
        text = f"How many processes? The global batch grows with them. Here: {num_cpus} CPUs, {cuda_devices} GPUs."
        questions.append(Question(id="num_processes", text=text, proposal=str(proposal)))
    if not settings.is_set("wall_time_s"):
        text = "After how many seconds is the run to be stopped, whatever it does?"
        questions.append(Question(id="wall_time_s", text=text, proposal="3600"))
    return questions
