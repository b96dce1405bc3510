"""The wizard: asks what the machine leaves open; every answer passes the loader's parser and the launcher's checks."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import ConfigurationError
from .choices import choose
from .launch_options import MACHINE_TYPES
from .loader import Given
from .option_kinds import Flag, Option, Text, Word, WrongValue, parse_text, write_text
from .option_table import table
from .resolve import Source, resolve

Answers = dict[str, Any]
_NONE_WORDS = ("no", "none", "null")
_LABELS = {
    "compute_environment": {
        "This machine": "LOCAL_MACHINE",
        "Slurm cluster": "SLURM",
        "Amazon SageMaker": "AMAZON_SAGEMAKER",
    },
    "distributed_type": {
        "No distributed training": "NO",
        "multi-CPU": "MULTI_CPU",
        "multi-GPU": "MULTI_GPU",
        "TPU": "XLA",
    },
}
_KEPT_GROUPS = ("Logs", "This call")


@dataclass(frozen=True)
class Machine:
    """What was found: processors, memory (None: unknown), names of usable GPUs, and whether they have bf16."""

    num_cpus: int
    memory_bytes: int | None = None
    gpus: tuple[str, ...] = ()
    has_bf16: bool = False
    has_slurm: bool = False

    def described(self) -> str:
        memory = "unknown" if self.memory_bytes is None else f"{self.memory_bytes / 2**30:.1f} GiB"
        gpus = ", ".join(self.gpus) or "none"
        slurm = "; Slurm's sbatch is here" if self.has_slurm else ""
        return f"Found: {self.num_cpus} CPUs; memory {memory}; GPUs: {gpus}{slurm}"


@dataclass(frozen=True)
class Step:
    """One question: the option, when it is open, and what is proposed (None: an answer is needed)."""

    name: str
    is_open: Callable[[Answers], bool] = lambda _: True
    propose: Callable[[Answers, Machine], Any] = lambda _answers, _machine: None
    optional: bool = False


def _kind_of_machine(answers: Answers) -> str:
    return str(answers.get("distributed_type", "NO"))


def _several_machines(answers: Answers) -> bool:
    return int(answers.get("num_machines") or 1) > 1


def _on(name: str) -> Callable[[Answers], bool]:
    return lambda answers: bool(answers.get(name))


def _deepspeed_by_hand(answers: Answers) -> bool:
    return bool(answers.get("use_deepspeed")) and not answers.get("deepspeed_config_file")


def _says(value: Any) -> Callable[[Answers, Machine], Any]:
    return lambda _answers, _machine: value


def _propose_type(_: Answers, machine: Machine) -> str:
    return "MULTI_GPU" if len(machine.gpus) > 1 else "NO"


def _propose_processes(answers: Answers, machine: Machine) -> int:
    here = len(machine.gpus) if _kind_of_machine(answers) == "MULTI_GPU" else min(machine.num_cpus, 4)
    return max(1, here) * int(answers.get("num_machines") or 1)


STEPS = (
    Step("compute_environment", propose=_says("LOCAL_MACHINE")),
    Step("distributed_type", propose=_propose_type),
    Step("num_machines", lambda a: _kind_of_machine(a) != "NO", _says(1)),
    Step("machine_rank", _several_machines, _says(0)),
    Step("main_process_ip", _several_machines),
    Step("main_process_port", _several_machines, _says(29500)),
    Step("rdzv_backend", _several_machines, _says("static")),
    Step("num_processes", lambda a: _kind_of_machine(a) != "NO", _propose_processes),
    Step("gpu_ids", lambda a: a.get("ask_gpu_ids") is True, _says("all")),
    Step("mixed_precision", propose=lambda a, m: "bf16" if m.has_bf16 and _kind_of_machine(a) != "MULTI_CPU" else "no"),
    Step("fp8_backend", lambda a: a.get("mixed_precision") == "fp8", _says("ao")),
    Step("use_deepspeed", lambda a: _kind_of_machine(a) in ("MULTI_GPU", "NO") and bool(a.get("gpus")), _says(False)),
    Step("deepspeed_config_file", _on("use_deepspeed"), _says("no"), optional=True),
    Step("zero_stage", _deepspeed_by_hand, _says(2)),
    Step("offload_optimizer_device", lambda a: _deepspeed_by_hand(a) and a.get("zero_stage", 0) >= 2, _says("none")),
    Step("offload_param_device", lambda a: _deepspeed_by_hand(a) and a.get("zero_stage", 0) == 3, _says("none")),
    Step("use_fsdp", lambda a: _kind_of_machine(a) == "MULTI_GPU" and not a.get("use_deepspeed"), _says(False)),
    Step("fsdp_reshard_after_forward", _on("use_fsdp"), _says("true")),
    Step("fsdp_offload_params", _on("use_fsdp"), _says(False)),
    Step("fsdp_auto_wrap_policy", _on("use_fsdp"), _says("TRANSFORMER_BASED_WRAP")),
    Step(
        "fsdp_transformer_layer_cls_to_wrap",
        lambda a: bool(a.get("use_fsdp")) and a.get("fsdp_auto_wrap_policy") == "TRANSFORMER_BASED_WRAP",
        _says("null"),
        optional=True,
    ),
    Step(
        "fsdp_min_num_params",
        lambda a: bool(a.get("use_fsdp")) and a.get("fsdp_auto_wrap_policy") == "SIZE_BASED_WRAP",
        _says(100_000_000),
    ),
    Step("fsdp_activation_checkpointing", _on("use_fsdp"), _says(False)),
    Step(
        "use_megatron_lm",
        lambda a: _kind_of_machine(a) == "MULTI_GPU" and not a.get("use_deepspeed") and not a.get("use_fsdp"),
        _says(False),
    ),
    Step("megatron_lm_tp_degree", _on("use_megatron_lm"), _says(1)),
    Step("megatron_lm_sequence_parallelism", lambda a: a.get("megatron_lm_tp_degree", 1) > 1, _says(True)),
    Step("megatron_lm_pp_degree", _on("use_megatron_lm"), _says(1)),
    Step("megatron_lm_num_micro_batches", lambda a: a.get("megatron_lm_pp_degree", 1) > 1, _says(1)),
    Step("megatron_lm_recompute_activations", _on("use_megatron_lm"), _says(True)),
    Step("megatron_lm_use_distributed_optimizer", _on("use_megatron_lm"), _says(True)),
)
_SHORT_FORMS = {"use_deepspeed": "DEEPSPEED", "use_fsdp": "FSDP", "use_megatron_lm": "MEGATRON_LM"}


@dataclass
class Interview:
    """A conversation: `ask` shows a prompt and gives one line back (EOFError at the end), `tell` shows a line."""

    ask: Callable[[str], str]
    tell: Callable[[str], None]
    machine: Machine
    earlier: Mapping[str, Any] = field(default_factory=dict)

    def hold(self) -> dict[str, Any]:
        """Ask everything that is open; the values for a file of ours.

        Raises:
            EOFError: the answers ended.
        """
        self.tell(self.machine.described())
        self.earlier = {**self.earlier, **_as_answers(self.earlier)}
        answers: Answers = {}
        for step in STEPS:
            if _is_open(step, answers, self.machine):
                self._ask(step, answers)
        return {**kept(self.earlier), **_for_file(answers)}

    def _ask(self, step: Step, answers: Answers) -> None:
        option = table()[step.name]
        proposal = self.earlier.get(step.name, step.propose(answers, self.machine))
        if isinstance(option.kind, Word):
            self.tell(f"{option.question}")
            for number, label in enumerate(_menu(option), start=1):
                self.tell(f"  {number}) {label}")
        while True:
            line = self.ask(_prompt(option, proposal)).strip()
            text = line or ("" if proposal is None else write_text(proposal))
            try:
                value = _understand(option, text, optional=step.optional)
                _require_sense({**answers, step.name: value})
            except WrongValue as error:
                self.tell(f"{text!r} is no answer here. Allowed: {error}.")
                continue
            except ConfigurationError as error:
                self.tell(str(error))
                continue
            if value is not None:
                answers[step.name] = value
            return


def default_values(machine: Machine, *, mixed_precision: str = "no") -> dict[str, Any]:
    """A file for this machine without a question: one process a GPU, or one on the CPU."""
    values: dict[str, Any] = {"compute_environment": "LOCAL_MACHINE"}
    if not machine.gpus:
        values["cpu"] = True
    return {**values, "num_processes": max(1, len(machine.gpus)), "mixed_precision": mixed_precision}


def kept(earlier: Mapping[str, Any]) -> dict[str, Any]:
    """Of an earlier file, what no question touches and no answer can contradict."""
    return {name: value for name, value in earlier.items() if table()[name].panel in _KEPT_GROUPS}


def _is_open(step: Step, answers: Answers, machine: Machine) -> bool:
    known = dict(answers)
    known["gpus"] = machine.gpus or _kind_of_machine(answers) == "MULTI_GPU"
    uses_gpus = _kind_of_machine(answers) in ("MULTI_GPU", "NO")
    known["ask_gpu_ids"] = uses_gpus and len(machine.gpus) > int(answers.get("num_processes") or 1)
    return step.is_open(known)


def _menu(option: Option) -> list[str]:
    labels = _LABELS.get(option.name)
    return list(labels) if labels else list(option.kind.words) if isinstance(option.kind, Word) else []


def _prompt(option: Option, proposal: Any) -> str:
    if isinstance(option.kind, Word):
        names = {word: label for label, word in _LABELS.get(option.name, {}).items()}
        shown = names.get(str(proposal), write_text(proposal))
        return f"number or word [{shown}]: " if proposal is not None else "number or word: "
    shown = ("yes" if proposal else "no") if isinstance(option.kind, Flag) else write_text(proposal)
    return f"{option.question} [{shown}]: " if proposal is not None else f"{option.question} "


def _understand(option: Option, text: str, *, optional: bool) -> Any:
    """The value that an answer means: a number of the menu, its label, or the option's own word."""
    if optional and text.lower() in _NONE_WORDS:
        return None
    menu = _menu(option)
    if menu:
        labels = {label.lower(): word for label, word in _LABELS.get(option.name, {}).items()}
        if text.isascii() and text.isdecimal() and text not in option.kind.allowed.split(", "):
            if not 1 <= int(text) <= len(menu):
                raise WrongValue(f"1 to {len(menu)}, or {', '.join(menu)}")
            text = menu[int(text) - 1]
        text = labels.get(text.lower(), text)
        if option.name == "distributed_type" and text.upper() not in MACHINE_TYPES[:4]:
            raise WrongValue(", ".join(menu))
    value = parse_text(option, text)
    if value is None or (isinstance(option.kind, Text) and not text):
        raise WrongValue(option.kind.allowed)
    return value


def _require_sense(answers: Answers) -> None:
    """The checks of a launch, so that no answer is stored that it would call a contradiction."""
    values = _for_file(answers)
    choose(resolve([Source("file", {name: Given(value, "your answer") for name, value in values.items()})]))


def _as_answers(values: Mapping[str, Any]) -> Answers:
    """The answers that gave a file its distributed_type, where a later question decided it."""
    for name, word in _SHORT_FORMS.items():
        if values.get("distributed_type") == word:
            return {"distributed_type": "MULTI_GPU", name: True}
    return {}


def _for_file(answers: Answers) -> dict[str, Any]:
    values = {name: value for name, value in answers.items() if name not in _SHORT_FORMS and value is not None}
    for name, word in _SHORT_FORMS.items():
        if answers.get(name):
            values["distributed_type"] = word
    if values.get("distributed_type") == "FSDP":
        values["fsdp_version"] = 2
    return values
