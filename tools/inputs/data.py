"""The declared data: found, inside the roots, digested, and looked into."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args

from runtime.config.plan import DataFile, DataRole
from runtime.errors import ForerunError
from runtime.snapshots.data_manifest import ManifestEntry, describe_data

from ..data_files import DataFileReport, inspect_data_file
from ..domain.errors import InvalidInput
from ..domain.paths import AllowedRoots
from .notes import Notes, nearest, nearest_files

ROLES: tuple[str, ...] = get_args(DataRole)
_LISTED_FINDINGS = 12


@dataclass
class DeclaredData:
    """Files and folders by role, in the order in which they were named; reports for those that are tables or arrays."""

    roles: list[tuple[DataRole, Path]] = field(default_factory=list)
    reports: dict[Path, DataFileReport] = field(default_factory=dict)

    def of_role(self, role: str) -> list[Path]:
        return [path for known, path in self.roles if known == role]

    @property
    def paths(self) -> list[Path]:
        return [path for _, path in self.roles]

    def add(self, role: DataRole, path: Path) -> bool:
        """False if the path is there already, whatever its role."""
        if path in self.paths:
            return False
        self.roles.append((role, path))
        return True


def read_declarations(declarations: Sequence[str], roots: AllowedRoots, notes: Notes) -> DeclaredData:
    """Parse 'role=path', resolve inside the roots, require that it exists."""
    data = DeclaredData()
    for text in declarations:
        role, equals, name = text.partition("=")
        if not equals or role not in ROLES:
            hint = f"{nearest(role, ROLES)}; write role=path, role being one of {', '.join(ROLES)}"
            notes.error("bad_data_role", f"data {text!r} begins with no known role", hint)
            continue
        try:
            path = roots.resolve(name, what=f"{role} data")
        except InvalidInput as error:
            notes.refusal("outside_roots", error)
            continue
        if not path.exists():
            notes.error("data_missing", f"{role} data {path} does not exist", nearest_files(path))
        elif not path.is_file() and not path.is_dir():
            notes.error("data_missing", f"{role} data {path} is no file", "name a regular file or a folder")
        elif not data.add(_role(role), path):
            notes.error(
                "data_twice", f"{path} is declared twice", "one file, one role: a held-out row is not trained on"
            )
    return data


def _role(text: str) -> DataRole:
    return next(role for role in get_args(DataRole) if role == text)


def inspect_all(data: DeclaredData, notes: Notes, *, id_columns: Sequence[str]) -> None:
    """Look into every declared file; what is odd about a file is said with its role and name."""
    for role, path in data.roles:
        if path.is_dir():
            notes.note("folder_not_checked", f"{role} {path.name}/: digested; the content of its files is not checked")
            continue
        try:
            report = inspect_data_file(path, id_columns=id_columns)
        except OSError as error:
            notes.error("data_unreadable", f"{role} data {path} cannot be read: {error.strerror}", "check permissions")
            continue
        data.reports[path] = report
        if role == "other":
            continue  # configurations and the like: digested, not judged
        for finding in report.findings[:_LISTED_FINDINGS]:
            notes.add(finding.level, finding.code, f"{role} {path.name}: {finding.message}", finding.hint)
        if len(report.findings) > _LISTED_FINDINGS:
            rest = report.findings[_LISTED_FINDINGS:]
            level = "error" if any(finding.level == "error" for finding in rest) else "warning"
            notes.add(level, "more_findings", f"{role} {path.name}: {len(rest)} more findings of this kind")  # type: ignore[arg-type]  # one of the two literals


def digest_all(data: DeclaredData, notes: Notes) -> tuple[tuple[DataFile, ...], list[tuple[ManifestEntry, ...]]]:
    """The data of the plan, and the manifest of each directory among them."""
    found, manifests = [], []
    for role, path in data.roles:
        try:
            file, entries = describe_data(role, path)
        except (OSError, ForerunError) as error:
            notes.error("data_unreadable", f"{role} data {path} cannot be digested: {error}", "check permissions")
            continue
        if file.mode == "sampled":
            text = f"{role} {path.name}: {file.size_bytes} bytes are more than 4 GiB; of each file above 64 MiB only "
            notes.warning("data_sampled", f"{text}size and 64 pieces of 1 MiB are covered")
        found.append(file)
        if file.num_files:
            manifests.append(entries)
    return tuple(found), manifests
