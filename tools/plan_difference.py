"""How two plans differ, in words: every field, lists and mappings element by element, files by name."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from runtime.config.plan import CodeFile, CodeSnapshot, DataFile, TrainingPlan

from .text import shown

_ABSENT = "(absent)"
_WORDS = {"argv": "argument", "args": "argument"}


def differences(old: TrainingPlan, new: TrainingPlan) -> tuple[str, ...]:
    """One line a difference, safe to show; empty exactly if the plans are equal."""
    lines: list[str] = []
    for name in TrainingPlan.model_fields:
        before, after = getattr(old, name), getattr(new, name)
        if before == after:
            continue
        if name == "code":
            lines += _code(before, after)
        elif name == "data":
            lines += _data(before, after)
        elif name == "settings":
            lines += _settings(before, after)
        else:
            lines += _values(_WORDS.get(name, name), _plain(before), _plain(after))
    return tuple(shown(line) for line in lines)


def _plain(value: Any) -> Any:
    return value.model_dump(mode="json") if hasattr(value, "model_dump") else value


def _values(path: str, before: Any, after: Any) -> Iterator[str]:
    if before == after and type(before) is type(after):
        return
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for key in sorted({*before, *after}):
            yield from _values(f"{path}.{key}", before.get(key, _ABSENT), after.get(key, _ABSENT))
    elif _is_list(before) and _is_list(after):
        for index in range(max(len(before), len(after))):
            pair = [side[index] if index < len(side) else _ABSENT for side in (before, after)]
            yield from _values(f"{_element(path)} {index + 1}", *pair)
    else:
        yield f"{path}: {_word(before)} -> {_word(after)}"


def _element(path: str) -> str:
    head, _, last = path.rpartition(".")
    word = _WORDS.get(last, last)
    return f"{head} {word}" if head else word


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _word(value: Any) -> str:
    return value if value is _ABSENT else "none" if value is None else repr(value)


def _code(old: CodeSnapshot, new: CodeSnapshot) -> Iterator[str]:
    if old.origin != new.origin:
        yield f"code origin: {old.origin} -> {new.origin}"
    if old.entry != new.entry:
        yield f"code entry: {old.entry} -> {new.entry}"
    before, after = ({file.path: file for file in code.files} for code in (old, new))
    named = False
    for path in sorted({*before, *after}):
        was, now = before.get(path), after.get(path)
        if was == now:
            continue
        named = True
        if was is None or now is None:
            yield f"code {path} {'added' if was is None else 'removed'}"
        elif was.sha256 != now.sha256 or was.size_bytes != now.size_bytes:
            yield f"code {path} changed ({_content(was, now)})"
        else:
            yield f"code {path}: executable {was.executable} -> {now.executable}"
    if old.sha256 != new.sha256 and not named:
        yield f"code digest: {old.sha256[:12]} -> {new.sha256[:12]}"
    if old.files != new.files and not named:
        yield "code files: the same files in another order"


def _content(was: CodeFile | DataFile, now: CodeFile | DataFile) -> str:
    return f"{was.size_bytes} -> {now.size_bytes} bytes, {was.sha256[:8]} -> {now.sha256[:8]}"


def _data(old: Sequence[DataFile], new: Sequence[DataFile]) -> Iterator[str]:
    before, after = ({(file.role, file.path): file for file in files} for files in (old, new))
    named = False
    for key in sorted({*before, *after}):
        was, now = before.get(key), after.get(key)
        if was == now:
            continue
        named = True
        where = f"data {key[0]} {key[1]}"
        if was is None or now is None:
            yield f"{where} {'added' if was is None else 'removed'}"
        elif was.sha256 != now.sha256 or was.size_bytes != now.size_bytes:
            yield f"{where} changed ({_content(was, now)})"
        elif was.num_files != now.num_files:
            yield f"{where}: {was.num_files or 'one file'} -> {now.num_files or 'one file'} (files in it)"
        else:
            yield f"{where}: digest {was.mode} -> {now.mode}"
    if not named:
        yield "data: the same files in another order or number"


def _settings(old: Sequence[Any], new: Sequence[Any]) -> Iterator[str]:
    before, after = ({item.name: item for item in items} for items in (old, new))
    named = False
    for name in sorted({*before, *after}):
        was, now = (side.get(name) for side in (before, after))
        if was == now:
            continue
        named = True
        words = [f"{item.value!r} ({item.origin})" if item else _ABSENT for item in (was, now)]
        yield f"setting {name}: {words[0]} -> {words[1]}"
    if not named:
        yield "settings: the same settings in another order or number"
