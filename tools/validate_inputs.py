"""validate_inputs: from a script, arguments, data and settings to a TrainingPlan, or to every finding and question."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runtime.config.plan import (
    Ceilings,
    CodeSnapshot,
    DataFile,
    Evaluation,
    Interpreter,
    ProcessLayout,
    SmokeSettings,
    TrainingPlan,
)
from runtime.env import current_environment
from runtime.errors import ForerunError
from runtime.snapshots.data_manifest import FOLDER, store_manifest
from runtime.snapshots.secret_values import keyed_hash, load_key
from runtime.snapshots.snapshot import collect, store

from .domain.errors import InvalidInput
from .domain.findings import Answer, Question
from .domain.paths import AllowedRoots
from .domain.reports import InputReport
from .inputs import arguments as script_arguments
from .inputs.batches import check_batches
from .inputs.data import DeclaredData, digest_all, inspect_all, read_declarations
from .inputs.environment import job_environment
from .inputs.evaluation import ask_for_evaluation, build_evaluation, chosen_evaluation, note_overlap
from .inputs.notes import Notes, nearest
from .inputs.program import ask_interpreter, find_python, find_script, note_shadowing
from .inputs.request import InputRequest, merged_request
from .inputs.script_source import ScriptSource
from .inputs.settings import MAX_SEED, Settings, ask_for_settings, fill_defaults, read_settings
from .inputs.smoke import ask_for_smoke_args, parse_smoke_args
from .inputs.sweep import settle_sweep
from .machine import DeviceSurvey, MachineLimits, Nvml, machine_limits, open_nvml, survey_devices
from .plan_difference import differences
from .probe import InterpreterFacts

__all__ = ["InputRequest", "merged_request", "validate_inputs"]

_QUESTIONS = ("seed", "device", "num_processes", "wall_time_s", "smoke_args", "evaluation")
_CPU_OVERLOAD = 4


@dataclass
class _Draft:
    """The plan while it is put together."""

    notes: Notes
    settings: Settings
    limits: MachineLimits
    source: ScriptSource | None = None
    data: DeclaredData = field(default_factory=DeclaredData)
    facts: InterpreterFacts | None = None
    environment: dict[str, str] = field(default_factory=dict)
    inherited: tuple[str, ...] = ()
    hashes: dict[str, str] = field(default_factory=dict)
    argv: tuple[str, ...] = ()
    sweep: tuple[tuple[str, ...], ...] = ()
    smoke_argv: tuple[str, ...] | None = None
    evaluation: Evaluation | None = None
    questions: list[Question] = field(default_factory=list)
    code_arguments: set[Path] = field(default_factory=set)


def validate_inputs(
    request: InputRequest,
    *,
    roots: AllowedRoots,
    snapshot_store: Path,
    base: TrainingPlan | None = None,
    base_inputs: Mapping[str, Any] | None = None,
    answers: Sequence[Answer] = (),
    base_environment: Mapping[str, str] | None = None,
    open_driver: Callable[[], Nvml] = open_nvml,
    limits: MachineLimits | None = None,
    secret_key: Path | None = None,
) -> InputReport:
    """Check everything at once. Nothing is written unless a plan comes out; then its code is in the snapshot store.

    Args:
        roots: the folders in which files may be named.
        snapshot_store: where the code goes, by its digest.
        base, base_inputs: the plan that this one starts from, and the arguments it was made of.
        answers: to questions of this plan, or inherited from the base plan.
        base_environment: where the listed base of the job's environment is taken from; this process's by default.
        open_driver, limits: the machine; others in tests.
        secret_key: the file of the key under which values of pass_env are hashed into the plan; made when needed.

    Raises:
        InvalidInput: a text is not Unicode, so that not even a finding about it could be kept.
    """
    request = merged_request(request, base_inputs)
    _require_unicode(request, answers)
    base_environment = current_environment() if base_environment is None else base_environment
    notes = Notes()
    draft = _Draft(notes, read_settings(request.settings, answers, notes), limits or machine_limits())
    _check_answers(answers, notes)
    draft.environment, draft.inherited = job_environment(draft.settings, base_environment, notes)
    draft.hashes = _bound_secrets(draft, base_environment, secret_key)
    draft.source = find_script(request.script, roots, notes)
    python = find_python(request.python, draft.source, roots, notes)
    if python is not None:
        draft.facts = ask_interpreter(python, draft.source, draft.environment, notes)
    draft.data = read_declarations(request.data, roots, notes)
    if draft.source is not None and not draft.source.syntax_error:
        note_shadowing(draft.source, draft.environment, notes)
        _settle_arguments(draft, draft.source, request, answers, roots)
    evaluation = chosen_evaluation(request.evaluation, answers, draft.settings, notes)
    _settle_data(draft, evaluation, roots)
    _check_layout(draft, open_driver)
    _ask(draft, evaluation is not None)
    fill_defaults(draft.settings)
    plan = _build(draft, roots, snapshot_store)
    return InputReport(
        findings=tuple(notes.findings),
        questions=() if plan else tuple(draft.questions),
        plan=plan,
        differences=differences(base, plan) if base and plan else (),
    )


def _require_unicode(request: InputRequest, answers: Sequence[Answer]) -> None:
    """Lone surrogates pass through JSON and file names, but no plan, digest or database can hold them."""
    try:
        for text in _texts([request.model_dump(), [answer.model_dump() for answer in answers]]):
            text.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(
            f"{error.object!a} is no Unicode text", allowed="text without lone surrogates", next_step="correct it"
        ) from error


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _texts(key)
            yield from _texts(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)


def _bound_secrets(draft: _Draft, environment: Mapping[str, str], key_file: Path | None) -> dict[str, str]:
    """The keyed hash of each secret's value, so that another value is another plan."""
    if key_file is None or draft.notes.has_errors or not draft.inherited:
        return {}
    try:
        key = load_key(key_file, create=True)
    except ForerunError as error:
        draft.notes.refusal("secret_key", error)
        return {}
    return {name: keyed_hash(key, name, environment[name]) for name in draft.inherited}


def _check_answers(answers: Sequence[Answer], notes: Notes) -> None:
    for answer in answers:
        if answer.question_id not in _QUESTIONS:
            text = f"{answer.question_id!r} is no question of ours"
            notes.error("unknown_question", text, nearest(answer.question_id, _QUESTIONS))


def _settle_arguments(
    draft: _Draft, source: ScriptSource, request: InputRequest, answers: Sequence[Answer], roots: AllowedRoots
) -> None:
    """argv and the smoke run's: checked, made absolute, with the seed."""
    smoke: tuple[str, ...] | None = request.smoke_args or None
    answer = next((a for a in answers if a.question_id == "smoke_args"), None)
    if smoke is None and answer is not None:
        try:
            smoke = parse_smoke_args(answer.value, request.args)
            draft.settings.put("smoke_args", answer.value, "user" if answer.source == "user" else "assumption")
        except ValueError as error:
            draft.notes.error("bad_answer", f"smoke_args={answer.value!r}: {error}", "quote it as in a shell")
    draft.sweep = settle_sweep(
        request.sweep, request.args, draft.notes, lambda given, what: _settled(draft, source, given, roots, what=what)
    )
    draft.argv = draft.sweep[0] if draft.sweep else _settled(draft, source, request.args, roots, what="args")
    if smoke is not None:
        draft.smoke_argv = _settled(draft, source, smoke, roots, what="smoke_args")


def _settled(
    draft: _Draft, source: ScriptSource, given: tuple[str, ...], roots: AllowedRoots, *, what: str
) -> tuple[str, ...]:
    notes = draft.notes
    values = script_arguments.check_arguments(source, given, notes, what=what)
    if what == "args":
        _settle_seed(draft, values)
        _check_workers(draft, values)
    argv, files = script_arguments.make_absolute(given, values, script=source.path, roots=roots, notes=notes, what=what)
    if what == "args":
        check_batches(files, values, draft.settings.get("num_processes"), notes)
    for path in files:
        if path == source.path or path.suffix == ".py":
            draft.code_arguments.add(path)
        elif draft.data.add("other", path):
            notes.note("declared_other", f"{path.name}, named in {what}, is covered as data of role other")
    flag = script_arguments.seed_flag(source)
    seed = draft.settings.get("seed")
    if flag and seed is not None and script_arguments.value_of(values, script_arguments.SEED_FLAGS) is None:
        notes.note("seed_added", f"{flag} {seed} was added to the arguments")
        argv = (*argv, flag, str(seed))
    elif flag is None and seed is not None and script_arguments.value_of(values, script_arguments.SEED_FLAGS) is None:
        text = f"seed {seed} is recorded, but no seed flag shows in {source.path.name}: it is not passed on"
        notes.warning("seed_not_passed", text, "let the script take --seed, or make sure that it sets this seed itself")
    return argv


def _settle_seed(draft: _Draft, values: Sequence[script_arguments.Value]) -> None:
    """A seed among the arguments is the seed; one in the settings may not say otherwise."""
    text = script_arguments.value_of(values, script_arguments.SEED_FLAGS)
    if text is None or not re.fullmatch(r"-?[0-9]+", text):
        return
    if len(text) > len(str(-MAX_SEED)) or abs(int(text)) > MAX_SEED:
        draft.notes.error("bad_setting", f"args say seed {text[:40]}", f"allowed: an integer up to {MAX_SEED}")
        return
    if draft.settings.is_set("seed") and draft.settings.get("seed") != int(text):
        said = draft.settings.get("seed")
        draft.notes.error("seed_twice", f"args say seed {text}, settings or answers say {said}", "give it once")
    draft.settings.put("seed", int(text), "argument")


def _check_workers(draft: _Draft, values: Sequence[script_arguments.Value]) -> None:
    text = script_arguments.value_of(values, script_arguments.WORKER_FLAGS)
    processes = draft.settings.get("num_processes")
    if text is None or not text.isdigit() or processes is None:
        return
    total = int(text) * processes
    if total > draft.limits.num_cpus:
        where = f"{draft.limits.num_cpus} CPUs ({draft.limits.cpu_source})"
        message = f"{text} loader workers for each of {processes} processes make {total} on {where}"
        draft.notes.warning("many_workers", message, "fewer workers; each also takes memory of its own")


def _settle_data(draft: _Draft, evaluation: Mapping[str, Any] | None, roots: AllowedRoots) -> None:
    ids = [str((evaluation or {}).get(name, "id")) for name in ("id", "id_column")]
    inspect_all(draft.data, draft.notes, id_columns=ids)
    if evaluation:
        draft.evaluation = build_evaluation(evaluation, draft.data, roots, draft.notes, arguments=draft.argv)
    if not draft.data.roles:
        text = "no data are declared: nothing that the script reads is covered by the plan"
        draft.notes.warning("no_data", text, "data: train=PATH, holdout=PATH")
    elif not draft.data.of_role("holdout"):
        text = "no hold-out data are declared: no metric can be verified"
        draft.notes.warning("no_holdout", text, "data: holdout=PATH of rows that are not trained on")
    else:
        note_overlap(draft.evaluation, draft.data, draft.notes)


def _check_layout(draft: _Draft, open_driver: Callable[[], Nvml]) -> None:
    """Processes against processors and devices."""
    processes, device = draft.settings.get("num_processes"), draft.settings.get("device")
    limits, notes = draft.limits, draft.notes
    if device == "cuda":
        _check_cuda(draft, survey_devices(draft.environment, limits, open_driver), processes)
    elif processes is not None and device in (None, "cpu"):
        where = f"{limits.num_cpus} CPUs ({limits.cpu_source})"
        if processes > _CPU_OVERLOAD * limits.num_cpus:
            most = _CPU_OVERLOAD * limits.num_cpus
            notes.error("too_many_processes", f"{processes} processes on {where}", f"allowed: 1 to {most}")
        elif processes > limits.num_cpus:
            notes.warning("many_processes", f"{processes} processes share {where}", "they will slow one another down")


def _check_cuda(draft: _Draft, survey: DeviceSurvey, processes: int | None) -> None:
    notes, facts = draft.notes, draft.facts
    seen_by_torch = facts.cuda_devices if facts else None
    if seen_by_torch == 0:
        build = f"torch {facts.torch_version}" if facts else "its torch"
        hint = "device=cpu, or a Python whose torch is built for CUDA, on a machine with a GPU"
        notes.error("no_cuda", f"device=cuda, but {build} sees no CUDA device", hint)
        return
    if survey.devices:
        available = len(survey.usable)
        available = available if seen_by_torch is None else min(available, seen_by_torch)
    elif seen_by_torch is not None:
        available = seen_by_torch
    else:
        notes.error("devices_unknown", "device=cuda, but neither the driver nor torch says how many there are", "cpu")
        return
    if processes is not None and processes > available:
        broken = [f"GPU {d.physical_index}: {'; '.join(d.reasons)}" for d in survey.devices if not d.usable]
        why = f" ({', '.join(broken)})" if broken else ""
        text = f"{processes} processes, but {available} CUDA device(s) can be used{why}"
        allowed = f"1 to {available}" if available else "nothing: no device is usable"
        notes.error("more_processes_than_devices", text, f"allowed: {allowed}; one process a device")


def _ask(draft: _Draft, has_evaluation: bool) -> None:
    """Questions about what nobody gave; what was given and is wrong is an error already, and not asked again."""
    settings, source = draft.settings, draft.source
    wrong = {f.message.partition("=")[0] for f in draft.notes.findings if f.code in ("bad_setting", "zero_processes")}
    questions = ask_for_settings(
        settings,
        seed_known=False,
        cuda_devices=(draft.facts.cuda_devices or 0) if draft.facts else 0,
        num_cpus=draft.limits.num_cpus,
    )
    draft.questions += [question for question in questions if question.id not in wrong]
    if source is not None and draft.smoke_argv is None and not source.syntax_error:
        steps = settings.get("smoke_steps") or 12
        draft.questions.append(ask_for_smoke_args(source, draft.argv, num_steps=steps))
    answered = has_evaluation or settings.is_set("evaluation")
    if draft.data.of_role("holdout") and not answered:
        draft.questions.append(ask_for_evaluation(draft.data))


def _build(draft: _Draft, roots: AllowedRoots, snapshot_store: Path) -> TrainingPlan | None:
    """The plan, if nothing stands against it."""
    data, manifests = digest_all(draft.data, draft.notes) if not draft.notes.has_errors else ((), [])
    code = _collect_code(draft, roots) if draft.source is not None and not draft.source.syntax_error else None
    if draft.notes.has_errors or draft.questions or code is None or draft.facts is None:
        return None
    if draft.smoke_argv is None:
        return None
    try:
        store(code, snapshot_store)
        for entries in manifests:
            store_manifest(snapshot_store / FOLDER, entries)
    except (ForerunError, OSError) as error:
        draft.notes.error("code_not_stored", f"the code could not be copied: {error}", "validate again")
        return None
    return _plan(draft, code, data, draft.facts, draft.smoke_argv)


def _collect_code(draft: _Draft, roots: AllowedRoots) -> CodeSnapshot | None:
    assert draft.source is not None
    try:
        code, remarks = collect(draft.source.path, data_paths=draft.data.paths)
    except ForerunError as error:
        draft.notes.refusal("code", error)
        return None
    origin = Path(code.origin)
    if not any(origin == root or root in origin.parents for root in roots.roots):
        text = f"the script belongs to the git work tree {origin}, which is outside the allowed roots"
        hint = "ask the user to restart the server with --root for that folder, or move the script out of it"
        draft.notes.error("outside_roots", text, hint)
        return None
    covered = {origin / file.path for file in code.files}
    for path in sorted(draft.code_arguments - covered):
        draft.notes.error("code_not_covered", f"{path}, named in the arguments, is not among the code", "git add it")
    for remark in remarks:
        draft.notes.note("code", remark)
    return code


def _plan(
    draft: _Draft, code: CodeSnapshot, data: tuple[DataFile, ...], facts: InterpreterFacts, smoke: tuple[str, ...]
) -> TrainingPlan:
    settings = draft.settings
    if not settings.is_set("device"):
        settings.put("device", "cpu", "default")
    return TrainingPlan(
        argv=draft.argv,
        sweep=draft.sweep,
        environment=draft.environment,
        inherited=draft.inherited,
        inherited_hashes=draft.hashes,
        code=code,
        data=data,
        interpreter=Interpreter(
            executable=facts.executable, version=facts.version or "", packages=facts.planned_packages
        ),
        layout=ProcessLayout(
            num_processes=settings.get("num_processes"),
            num_nodes=settings.get("num_nodes"),
            device=settings.get("device"),
            launcher=settings.get("launcher"),
        ),
        seed=settings.get("seed"),
        smoke=SmokeSettings(
            args=smoke,
            num_steps=settings.get("smoke_steps"),
            loss=settings.get("loss"),
            wall_time_s=settings.get("smoke_wall_time_s"),
        ),
        evaluation=draft.evaluation,
        ceilings=Ceilings(
            wall_time_s=settings.get("wall_time_s"),
            max_retries=settings.get("max_retries"),
            disk_bytes=int(settings.get("disk_gib") * 2**30),
            cost=settings.get("max_cost"),
        ),
        settings=settings.recorded(),
    )
