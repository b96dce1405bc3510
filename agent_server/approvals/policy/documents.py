"""Policy and price files as they are read at the door: the checked model, or every finding."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from pydantic import field_validator

from runtime.launchers.registry import launcher_names
from tools.domain.applied import DocumentKind
from tools.domain.approval import AssuranceLevel
from tools.domain.errors import InvalidInput
from tools.evidence.prices import Price, PriceList
from tools.inputs.notes import nearest
from tools.inputs.settings import DEVICES

from .currencies import CURRENCIES, currency_hint
from .model import RESERVED_VERSION, Amount, Policy
from .reading import MAX_BYTES, FileFinding, Read, decode, read_yaml

SHORT_DIGEST = 12


@dataclass(frozen=True)
class Document:
    """A file that holds what it should. `warnings` keep nobody from applying it."""

    kind: DocumentKind
    path: Path
    text: str
    sha256: str
    content: Policy | PriceList
    warnings: tuple[str, ...] = ()

    @property
    def version(self) -> str:
        """Such as `lab-2@1a2b3c4d5e6f`: two files with one name are two versions."""
        name = self.content.version if isinstance(self.content, Policy) else "prices"
        return f"{name}@{self.sha256[:SHORT_DIGEST]}"


def read_document(kind: DocumentKind, path: Path, *, now_s: float) -> Document:
    """Read and check a file of this kind.

    Raises:
        InvalidInput: it cannot be read, or with every finding at once.
    """
    path = path.expanduser().absolute()
    content = read_file(path)
    text, findings = decode(content)
    read = Read[Policy | PriceList](None, findings) if findings else _parse(kind, text, now_s=now_s)
    if read.model is None:
        raise bad_file(path, read.findings, kind=kind)
    warnings = tuple(_warnings(read.model))
    return Document(kind, path, text, hashlib.sha256(content).hexdigest(), read.model, warnings)


def read_file(path: Path) -> bytes:
    """A regular file, up to a byte more than is allowed.

    Raises:
        InvalidInput: there is none that can be read.
    """
    try:
        if not path.is_file():
            raise InvalidInput(f"{path} is no file", allowed="a YAML file", next_step="check the spelling")
        with path.open("rb") as handle:
            return handle.read(MAX_BYTES + 1)
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}", next_step="make it readable") from error


def bad_file(path: Path, findings: tuple[FileFinding, ...], *, kind: str) -> InvalidInput:
    """One refusal that holds every finding."""
    number = "1 finding" if len(findings) == 1 else f"{len(findings)} findings"
    words = "; ".join(finding.words() for finding in findings)
    return InvalidInput(
        f"{path}: {number}, nothing was changed: {words}",
        allowed="what docs/policy.md shows",
        next_step=f"mend the file, then `forerun {kind} check {path}`",
    )


def parse_policy(text: str) -> Read[Policy]:
    """A policy of a user's."""
    read = read_yaml(text, Policy)
    if read.model is not None and read.model.version.startswith(RESERVED_VERSION):
        message = f"{read.model.version!r} is the name of a shipped policy; give yours another"
        return Read(None, (FileFinding("version", message),))
    return read


def parse_prices(text: str, *, now_s: float) -> Read[PriceList]:
    """A price list, its age counted up to `now_s`."""
    read = read_yaml(text, _Prices)
    if read.model is None:
        return Read(None, tuple(map(_one_currency, read.findings)))
    today = datetime.fromtimestamp(now_s, UTC).date()
    if (read.model.as_of - today).days > 1:  # a day of grace for time zones
        return Read(None, (FileFinding("as_of", f"{read.model.as_of} lies in the future"),))
    prices = PriceList.model_validate(read.model.model_dump())
    return Read(prices.model_copy(update={"age_days": max(0, (today - prices.as_of).days)}))


class _Price(Price):
    """A price whose words are known."""

    amount: Amount

    @field_validator("launcher")
    @classmethod
    def _known_launcher(cls, name: str | None) -> str | None:
        return _known(name, launcher_names())

    @field_validator("device")
    @classmethod
    def _known_device(cls, name: str | None) -> str | None:
        return _known(name, DEVICES)


class _Prices(PriceList):
    """A price list as a human may write it."""

    prices: tuple[_Price, ...]

    @field_validator("prices", mode="before")
    @classmethod
    def _not_empty(cls, prices: object) -> object:
        if prices in (None, [], ()):
            raise ValueError("the list is empty; with no price at all, apply no file: costs are unknown then")
        return prices

    @field_validator("currency")
    @classmethod
    def _known_currency(cls, currency: str) -> str:
        if currency not in CURRENCIES:
            raise ValueError(currency_hint(currency))
        return currency

    @field_validator("age_days", mode="before")
    @classmethod
    def _counted(cls, _: object) -> None:
        raise ValueError("the age is counted from as_of; take this key out")


def _known(name: str | None, names: Sequence[str]) -> str | None:
    if name is not None and name not in names:
        raise ValueError(f"{name!r} is unknown; {nearest(name, names)}")
    return name


def _parse(kind: DocumentKind, text: str, *, now_s: float) -> Read[Policy | PriceList]:
    read = parse_policy(text) if kind == "policy" else parse_prices(text, now_s=now_s)
    return Read(read.model, read.findings)


def _one_currency(finding: FileFinding) -> FileFinding:
    if finding.where.startswith("prices[") and finding.where.endswith(".currency"):
        message = "one file holds one currency, at the top: amounts of several are never added"
        return FileFinding(finding.where, message, finding.line)
    return finding


def _warnings(content: Policy | PriceList) -> Iterator[str]:
    if isinstance(content, Policy):
        if content.strictest is not AssuranceLevel.A2:
            yield (
                f"some launches will need {content.strictest.value}, and `forerun keys enroll` gives A2: such launches "
                "cannot be approved in a terminal"
            )
        if content.free_tier is not None:
            yield "launches in the free tier start without any human"
        return
    for number, price in enumerate(content.prices, start=1):
        earlier = [p for p in content.prices[: number - 1] if _covers(p.launcher, price.launcher)]
        if any(_covers(p.device, price.device) for p in earlier):
            yield f"prices[{number}] is never used: an earlier one fits everything that it fits"
        if price.amount == 0:
            yield f"prices[{number}] is 0: such launches will count as costing nothing"
    if content.age_days is not None and content.age_days > 180:
        yield f"the prices are {content.age_days} days old"


def _covers(wide: str | None, narrow: str | None) -> bool:
    return wide is None or wide == narrow
