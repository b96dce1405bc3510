"""The machine form: an in-toto Statement v1 with an SLSA provenance predicate and a test result, and its DSSE type."""

import json
from typing import Any

PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "https://slsa.dev/provenance/v1"
TEST_RESULT_TYPE = "https://in-toto.io/attestation/test-result/v0.1"
BUILD_TYPE = "urn:forerun:training-run:v1"
BUILDER_ID = "urn:forerun:server"
REPORT_FIELD = "forerun_report"
TEST_RESULT_FIELD = "forerun_testResult"


def make_statement(body: dict[str, Any]) -> dict[str, Any]:
    """Wrap the report: it stands whole in an extension field of the predicate, so the signature covers all of it."""
    run, plan = body["run"], body["plan"]
    return {
        "_type": STATEMENT_TYPE,
        "subject": _subjects(body),
        "predicateType": PREDICATE_TYPE,
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {
                    "arguments": plan["arguments"],
                    "script": (plan["code"] or {}).get("entry"),
                    "settings": plan["settings"],
                },
                "internalParameters": {"plan_digest": run["plan_digest"], "layout": plan["layout"]},
                "resolvedDependencies": _dependencies(plan),
            },
            "runDetails": {
                "builder": {"id": BUILDER_ID, "version": {"forerun": body["forerun_version"]}},
                "metadata": {
                    "invocationId": run["run_id"],
                    "startedOn": run["started_at"],
                    "finishedOn": run["ended_at"],
                },
                "byproducts": [_descriptor(f) for f in body["files"] if not _is_output(f) and f["sha256"]],
            },
            TEST_RESULT_FIELD: {"predicateType": TEST_RESULT_TYPE, "predicate": _test_result(body)},
            REPORT_FIELD: body,
        },
    }


def encode(statement: dict[str, Any]) -> bytes:
    """The bytes that are signed: ASCII JSON, so that no character in it can act on a terminal."""
    return (json.dumps(statement, indent=1, allow_nan=False, ensure_ascii=True) + "\n").encode("ascii")


def body_of(statement: dict[str, Any]) -> dict[str, Any]:
    """The report inside a statement."""
    body: dict[str, Any] = statement["predicate"][REPORT_FIELD]
    return body


def _is_output(file: dict[str, Any]) -> bool:
    path: str = file["path"]
    return file["root"] == "run" and path.startswith(("work/", "checkpoints/"))


def _subjects(body: dict[str, Any]) -> list[dict[str, Any]]:
    """What the run made; a run that made nothing is named by its plan."""
    outputs = [_descriptor(f) for f in body["files"] if _is_output(f) and f["sha256"]]
    return outputs or [{"name": body["run"]["run_id"], "digest": {"sha256": body["run"]["plan_digest"]}}]


def _descriptor(file: dict[str, Any]) -> dict[str, Any]:
    name = file["path"] if file["root"] == "run" else f"{file['root']}/{file['path']}"
    return {"name": name, "digest": {"sha256": file["sha256"]}}


def _dependencies(plan: dict[str, Any]) -> list[dict[str, Any]]:
    code = plan["code"]
    found = [{"name": "code", "digest": {"sha256": code["sha256"]}}] if code else []
    found += [{"name": f"data:{file['role']}", "uri": file["path"], "digest": _digest(file)} for file in plan["data"]]
    packages = (plan["interpreter"] or {}).get("packages", {})
    return found + [{"name": name, "uri": f"pkg:pypi/{name}@{version}"} for name, version in packages.items()]


def _digest(file: dict[str, Any]) -> dict[str, str]:
    return {"sha256": file["sha256"]} if file["mode"] == "full" else {"forerun_sampled_sha256": file["sha256"]}


def _test_result(body: dict[str, Any]) -> dict[str, Any]:
    passed: list[str] = []
    warned: list[str] = []
    failed: list[str] = []
    for check in (body["smoke"] or {}).get("checks", []):
        group = {"passed": passed, "failed": failed}.get(check["outcome"], warned)
        group.append(f"smoke:{check['name']}")
    (passed if body["run"]["state"] == "succeeded" else failed).append("run")
    verification = body["verification"]
    if verification is None:
        warned.append("verification")
    else:
        (passed if verification["verdict"] == "verified" else failed).append("verification")
        if any(finding["level"] != "note" for finding in verification["leakage"]):
            warned.append("leakage")
    result = "FAILED" if failed else "WARNED" if warned else "PASSED"
    data = body["plan"]["data"]
    return {
        "result": result,
        "configuration": [{"name": f"data:{f['role']}", "digest": _digest(f)} for f in data if f["role"] == "holdout"],
        "passedTests": passed,
        "warnedTests": warned,
        "failedTests": failed,
    }
