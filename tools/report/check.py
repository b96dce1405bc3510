"""verify_report: does the signature hold, and are the files that the report speaks of still what they were?"""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from runtime.config.digest import digest_file
from runtime.errors import ForerunError
from runtime.snapshots.data_manifest import data_digest

from ..domain.errors import Refused
from ..signatures import verify
from ..text import visible
from .body import forerun_version
from .paths import ReportPaths
from .render import render_html, render_markdown
from .statement import PAYLOAD_TYPE, STATEMENT_TYPE, body_of


def verify_report(envelope: dict[str, Any], public_pem: str) -> dict[str, Any]:
    """Check a report's envelope, then every file that it names and that still exists.

    Returns:
        signature, run_id, sha256 (of the signed document), signed_by, num_checked, changed, missing, not_compared and
        ok. `ok` is False as soon as one file differs or is missing; `not_compared` names what could not be looked at.

    Raises:
        Refused: the signature does not fit, or what was signed is no report of ours.
    """
    payload = verify(envelope, PAYLOAD_TYPE, public_pem)
    try:
        statement = json.loads(payload)
        body = body_of(statement)
        if statement["_type"] != STATEMENT_TYPE:
            raise KeyError("_type")
        checks = [*_files(body), *_data(body), *_renderings(body, payload)]
        run_id, signer = body["run"]["run_id"], body["signed_by"]
    except (KeyError, TypeError, ValueError) as error:
        raise Refused("the signed document is no provenance report of ours", allowed="report.dsse.json") from error
    found: dict[str, list[str]] = {"same": [], "changed": [], "missing": [], "not_compared": []}
    for outcome, name in checks:
        found[outcome].append(visible(name))
    return {
        "signature": "valid",
        "run_id": run_id,
        "sha256": hashlib.sha256(payload).hexdigest(),
        "signed_by": signer,
        "num_checked": len(found["same"]) + len(found["changed"]),
        "changed": found["changed"],
        "missing": found["missing"],
        "not_compared": found["not_compared"],
        "ok": not found["changed"] and not found["missing"],
    }


def _files(body: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for file in body["files"]:
        name = file["path"] if file["root"] == "run" else f"{file['root']}/{file['path']}"
        path = Path(body["roots"][file["root"]]) / file["path"]
        if file["sha256"] is None:
            yield "not_compared", f"{name}: it was not hashed for the report"
            continue
        yield _outcome(path, file["sha256"]), name


def _data(body: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for file in body["plan"]["data"]:
        try:
            _, digest, _ = data_digest(Path(file["path"]), mode=file["mode"])
        except FileNotFoundError:
            yield "missing", file["path"]
        except (OSError, ForerunError) as error:
            yield "changed", f"{file['path']}: {error}"
        else:
            yield "same" if digest == file["sha256"] else "changed", file["path"]


def _renderings(body: dict[str, Any], payload: bytes) -> Iterator[tuple[str, str]]:
    """report.json must be the signed bytes; HTML and Markdown must be what these bytes render to."""
    paths = ReportPaths(Path(body["roots"]["run"]) / "report")
    digest = hashlib.sha256(payload).hexdigest()
    yield _outcome(paths.json, digest), "report/report.json"
    if body["forerun_version"] != forerun_version():
        yield "not_compared", "report/report.html, report/report.md: another version of forerun rendered them"
        return
    for path, text in (
        (paths.html, render_html(body, sha256=digest)),
        (paths.markdown, render_markdown(body, sha256=digest)),
    ):
        yield _outcome(path, hashlib.sha256(text.encode()).hexdigest()), f"report/{path.name}"


def _outcome(path: Path, sha256: str) -> str:
    try:
        return "same" if digest_file(path) == sha256 else "changed"
    except FileNotFoundError:
        return "missing"
    except OSError:
        return "changed"
