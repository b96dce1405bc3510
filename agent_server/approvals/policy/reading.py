"""YAML files of humans: every finding at once, with its line, the key that was probably meant, and exact numbers."""

import re
from dataclasses import dataclass, field
from decimal import Decimal
from types import UnionType
from typing import Any, Generic, TypeVar, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError

from tools.inputs.notes import nearest

MAX_BYTES = 256 * 1024
Model = TypeVar("Model", bound=BaseModel)
Place = tuple[str | int, ...]


@dataclass(frozen=True)
class FileFinding:
    """One thing that is wrong. `line` counts from 1; None where YAML gives none."""

    where: str
    message: str
    line: int | None = None

    def words(self) -> str:
        line = f"line {self.line}: " if self.line is not None else ""
        return f"{line}{self.where + ': ' if self.where else ''}{self.message}"


@dataclass(frozen=True)
class Read(Generic[Model]):
    """The model, or why there is none."""

    model: Model | None
    findings: tuple[FileFinding, ...] = ()


@dataclass
class _Tree:
    """Plain data out of YAML nodes, with the line of every place."""

    lines: dict[Place, int] = field(default_factory=dict)
    findings: list[FileFinding] = field(default_factory=list)

    def data(self, node: yaml.Node, place: Place) -> Any:
        self.lines.setdefault(place, node.start_mark.line + 1)
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, place)
        if isinstance(node, yaml.SequenceNode):
            return [self.data(item, (*place, index)) for index, item in enumerate(node.value)]
        return self._scalar(node, place)

    def _mapping(self, node: yaml.MappingNode, place: Place) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            name = key.value if isinstance(key, yaml.ScalarNode) else None
            if name is None or key.tag == "tag:yaml.org,2002:merge":
                self.findings.append(FileFinding(_dotted(place), "a key must be a plain word", line))
            elif name in found:
                self.findings.append(FileFinding(_dotted((*place, name)), "the key is given twice", line))
            else:
                self.lines[(*place, name)] = line
                found[name] = self.data(value, (*place, name))
        return found

    def _scalar(self, node: yaml.Node, place: Place) -> Any:
        kind = node.tag.removeprefix("tag:yaml.org,2002:")
        text = str(node.value)
        if kind == "null":
            return None
        if kind == "bool":
            return text.lower() in ("yes", "true", "on")
        if kind in ("int", "float"):
            return _number(text)
        if kind not in ("str", "timestamp"):
            line = node.start_mark.line + 1
            self.findings.append(FileFinding(_dotted(place), f"the tag {node.tag} means nothing here", line))
        return text


def read_yaml(text: str, model: type[Model]) -> Read[Model]:
    """The model that `text` holds, or every reason why it holds none."""
    try:
        tokens = [t for t in yaml.scan(text) if isinstance(t, yaml.AnchorToken | yaml.AliasToken)]
        if tokens:
            line = tokens[0].start_mark.line + 1
            return Read(None, (FileFinding("", "anchors and aliases are not read: write each value out", line),))
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        return Read(None, (FileFinding("", f"no YAML: {error.problem}", mark.line + 1 if mark else None),))
    except (yaml.YAMLError, RecursionError) as error:
        return Read(None, (FileFinding("", f"no YAML: {error}"),))
    if not isinstance(node, yaml.MappingNode):
        allowed = ", ".join(model.model_fields)
        return Read(None, (FileFinding("", f"the file holds no keys; allowed: {allowed}"),))
    tree = _Tree()
    try:
        data = tree.data(node, ())
        found = None
        found = model.model_validate(data)
    except RecursionError:
        return Read(None, (FileFinding("", "nested too deeply"),))
    except ValidationError as error:
        tree.findings += [_finding(details, model, tree.lines) for details in error.errors()]
    findings = sorted(tree.findings, key=lambda finding: finding.line or 0)
    return Read(None if findings else found, tuple(findings))


def decode(content: bytes) -> tuple[str, tuple[FileFinding, ...]]:
    """The text of a file, or why it is none that is read."""
    if len(content) > MAX_BYTES:
        return "", (FileFinding("", f"{len(content)} bytes; allowed: up to {MAX_BYTES}"),)
    try:
        return content.decode(), ()
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        return "", (FileFinding("", f"byte {error.start} is no UTF-8", line),)


def _number(text: str) -> Any:
    """Exactly as written; what is no decimal number stays a text, which no number field takes."""
    plain = text.replace("_", "").lower().replace(".inf", "inf").replace(".nan", "nan")
    try:
        number = Decimal(plain)
    except ArithmeticError:
        return text
    return int(number) if number.is_finite() and plain.lstrip("+-").isdigit() else number


def _finding(details: Any, model: type[BaseModel], lines: dict[Place, int]) -> FileFinding:
    place: Place = tuple(part for part in details["loc"])
    line = next((lines[place[:end]] for end in range(len(place), -1, -1) if place[:end] in lines), None)
    name = str(place[-1]) if place else ""
    if details["type"] == "extra_forbidden":
        return FileFinding(_dotted(place), f"there is no such key; {nearest(name, _fields(model, place[:-1]))}", line)
    if details["type"] == "missing":
        return FileFinding(_dotted(place), "the key is missing", line)
    message = str(details["msg"]).removeprefix("Value error, ")
    if details["type"] == "literal_error":
        message = "allowed: " + re.sub(r"<[^:>]*: '([^']*)'>", r"\1", str(details["ctx"]["expected"]))
    shown = details.get("input")
    given = f" (it is {shown})" if isinstance(shown, str | int | Decimal) and details["type"] != "value_error" else ""
    return FileFinding(_dotted(place), message + given, line)


def _fields(model: type[BaseModel], place: Place) -> tuple[str, ...]:
    """The keys that are known at this place."""
    kind: Any = model
    for part in place:
        if isinstance(part, int):
            kind = _model_in(get_args(kind)[0]) if get_args(kind) else None
        elif isinstance(kind, type) and issubclass(kind, BaseModel) and part in kind.model_fields:
            annotation = kind.model_fields[part].annotation
            kind = annotation if get_origin(annotation) is tuple else _model_in(annotation)
        else:
            kind = None
    return tuple(kind.model_fields) if isinstance(kind, type) and issubclass(kind, BaseModel) else ()


def _model_in(annotation: Any) -> Any:
    """The model of an annotation that may allow None."""
    if get_origin(annotation) in (Union, UnionType):
        return next((kind for kind in get_args(annotation) if kind is not type(None)), None)
    return annotation


def _dotted(place: Place) -> str:
    words = ""
    for part in place:
        words += f"[{part + 1}]" if isinstance(part, int) else f".{part}" if words else str(part)
    return words
