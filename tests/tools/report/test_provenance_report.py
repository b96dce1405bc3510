"""The report as a whole: nothing missing is hidden, every metric has its evidence, every flipped byte is found."""

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from runtime.config.order import Heartbeat
from runtime.records import MetricRecord, append_metric
from tests.fakes.prepared_run import PreparedRun
from tests.fakes.report_material import Written, complete_material, write
from tools.domain.approval import AssuranceLevel
from tools.domain.errors import InvalidInput, Refused
from tools.domain.findings import Answer
from tools.domain.run_state import RunState
from tools.provenance_report import ReportMaterial, verify_report
from tools.report.__main__ import main
from tools.signatures import public_pem

ALWAYS = {
    "environment_not_inspected",
    "seed_variance",
    "near_duplicates",
    "metric:loss",
    "metric:val_accuracy",
    "assumption:weight_decay",
    "licence",
    "personal_data",
    "energy",
    "gpu",
    "determinism",
    "loaded_modules",
}
VERIFIED = {"holdout_unseen", "time_leakage", "group_leakage"}


def test_not_verified_is_complete_by_id_when_all_steps_were_done(material: ReportMaterial) -> None:
    assert write(material).ids == ALWAYS | VERIFIED


def test_every_skipped_step_is_listed_by_id(bare: ReportMaterial) -> None:
    assert write(bare).ids == ALWAYS | {
        "step:smoke_test",
        "step:estimate_cost",
        "step:request_approval",
        "step:verify_metrics",
        "metric:accuracy",
        "baseline:majority",
        "baseline:linear",
        "cost",
        "audit_chain",
    }


@pytest.mark.parametrize(
    ("change", "identifier"),
    [
        ({"verification": None}, "step:verify_metrics"),
        ({"smoke": None}, "step:smoke_test"),
        ({"estimate": None}, "step:estimate_cost"),
        ({"request": None, "approval": None}, "step:request_approval"),
        ({"approval": None}, "step:request_approval"),
    ],
)
def test_a_report_cannot_hide_a_missing_step(material: ReportMaterial, change: dict[str, Any], identifier: str) -> None:
    written = write(_without(material, change), "All steps were done and verified.")
    assert identifier in written.ids
    for text in (written.html, written.markdown.replace("\\", "")):
        assert "NOT VERIFIED" in text
        assert identifier in text


def _without(material: ReportMaterial, change: dict[str, Any]) -> ReportMaterial:
    if "verification" in change:
        return replace(material, run=material.run.model_copy(update=change))
    if set(change) & {"smoke", "estimate"}:
        return replace(material, plan_record=material.plan_record.model_copy(update=change))
    return replace(material, **change)


def test_evidence_of_another_plan_counts_as_missing(material: ReportMaterial) -> None:
    run = material.run.model_copy(update={"plan_digest": "0" * 64})
    written = write(replace(material, run=run))
    assert {"step:smoke_test", "step:estimate_cost", "approval_signature"} <= written.ids
    assert "the plan on record is not the one that ran" in written.body["deviations"]


def test_missing_smoke_evidence_assumptions_and_unknowns_are_listed(prepared: PreparedRun) -> None:
    plan = prepared.plan
    sampled = tuple(file.model_copy(update={"mode": "sampled"}) for file in plan.data[:1]) + plan.data[1:]
    prepared = prepared.with_plan(seed=None, data=sampled, inherited=("HF_TOKEN",))
    material = complete_material(prepared, not_shown=("loss_fell", "checkpoint_loads"), cost=None)
    record = material.plan_record.model_copy(
        update={
            "answers": (Answer(question_id="metric_unit", value="percent", source="assumption"),),
            "base_plan_id": "plan-0000000009",
        }
    )
    written = write(replace(material, plan_record=record))
    assert {
        "smoke:loss_fell",
        "smoke:checkpoint_loads",
        "assumption:metric_unit",
        "data_sampled:train.csv",
        "seed",
        "cost",
        "estimate:cost",
        "inherited_values",
        "code_difference",
    } <= written.ids
    assert written.body["account"]["total_cost"] is None
    assert "smoke evidence 'loss_fell' was missing and accepted by Ada" in written.body["deviations"]


def test_a_verification_that_failed_says_why(prepared: PreparedRun) -> None:
    prepared.predict(["a"] * 119)
    written = write(complete_material(prepared))
    assert {"verification", "metric:accuracy"} <= written.ids
    assert written.body["headline"]["verdict"] == "not_verified"
    assert "119 rows, the hold-out file 120" in written.html
    assert not [claim for claim in written.body["claims"] if claim["id"].startswith("metric:")]


def test_every_metric_points_at_file_line_and_digest(material: ReportMaterial) -> None:
    body = write(material).body
    assert {m["name"] for m in body["metrics"]} == {"accuracy", "loss", "val_accuracy"}
    for metric in body["metrics"]:
        source = metric["source"]
        content = (material.layout.root / source["file"]).read_bytes()
        assert hashlib.sha256(content).hexdigest() == source["sha256"]
        if metric["origin"] == "server_scored":
            assert source["line"] == "all"
            continue
        record = json.loads(content.splitlines()[source["line"] - 1])
        assert (record["name"], record["value"]) == (metric["name"], metric["value"])


def test_every_piece_of_evidence_names_an_existing_file_with_its_digest(material: ReportMaterial) -> None:
    body = write(material).body
    assert body["claims"]
    for claim in body["claims"]:
        assert claim["evidence"], claim["id"]
        for text in claim["evidence"]:
            match = re.fullmatch(r"(?P<file>.+):(?P<line>\d+|all|approval) sha256:(?P<sha256>[0-9a-f]{64})", text)
            assert match, text
            if match["line"] == "approval":
                continue
            name = match["file"]
            root = body["roots"]["smoke" if name.startswith("smoke/") else "run"]
            path = Path(root) / name.removeprefix("smoke/")
            assert hashlib.sha256(path.read_bytes()).hexdigest() == match["sha256"]


def test_a_fresh_report_verifies(material: ReportMaterial) -> None:
    result = write(material).verify()
    assert result["ok"]
    assert result["changed"] == result["missing"] == result["not_compared"] == []
    assert result["num_checked"] == 16
    assert result["run_id"] == material.run.run_id


def _all_files(written: Written) -> Iterator[Path]:
    material = written.material
    assert material.smoke_layout is not None
    assert material.plan_record.plan is not None
    for root in (material.layout.root, material.smoke_layout.root):
        yield from (path for path in sorted(root.rglob("*")) if path.is_file())
    yield from (Path(file.path) for file in material.plan_record.plan.data)


def test_a_flipped_byte_in_any_file_is_found(material: ReportMaterial) -> None:
    written = write(material)
    files = [path for path in _all_files(written) if path.name != "report.dsse.json" and path.stat().st_size]
    assert len(files) == 15
    for path in files:
        content = path.read_bytes()
        middle = len(content) // 2
        path.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
        result = written.verify()
        assert not result["ok"], path
        assert len(result["changed"]) == 1, path
        assert path.name in result["changed"][0]
        path.write_bytes(content)
    assert written.verify()["ok"]


def test_a_missing_file_is_found(material: ReportMaterial) -> None:
    written = write(material)
    material.layout.result.unlink()
    result = written.verify()
    assert (result["missing"], result["ok"]) == (["result.json"], False)


def test_a_changed_envelope_or_another_key_is_refused(material: ReportMaterial) -> None:
    written = write(material)
    envelope = json.loads((material.layout.report / "report.dsse.json").read_text())
    with pytest.raises(Refused):
        verify_report(envelope, public_pem(Ed25519PrivateKey.generate()))
    payload = envelope["payload"]
    flipped = "A" if payload[200] != "A" else "B"
    with pytest.raises(Refused):
        verify_report(envelope | {"payload": payload[:200] + flipped + payload[201:]}, public_pem(written.key))
    with pytest.raises(Refused):
        verify_report(envelope | {"payloadType": "text/plain"}, public_pem(written.key))


def test_the_statement_is_in_toto_with_slsa_provenance_and_a_test_result(material: ReportMaterial) -> None:
    statement = write(material).statement
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    assert statement["predicateType"] == "https://slsa.dev/provenance/v1"
    names = {subject["name"] for subject in statement["subject"]}
    assert names == {"checkpoints/last/model.safetensors", "work/preds.csv"}
    definition = statement["predicate"]["buildDefinition"]
    assert definition["buildType"] == "urn:forerun:training-run:v1"
    assert {d["name"] for d in definition["resolvedDependencies"]} == {"code", "data:train", "data:holdout", "torch"}
    test = statement["predicate"]["forerun_testResult"]["predicate"]
    assert test["result"] == "PASSED"
    assert "verification" in test["passedTests"]


def test_predictions_that_changed_after_scoring_are_said_to_have(material: ReportMaterial) -> None:
    assert material.verification is not None
    path = material.layout.root / material.verification.predictions_file
    path.write_text(path.read_text() + "t999,a\n")
    written = write(material)
    assert "predictions_changed" in written.ids
    assert "work/preds.csv changed since the server scored it" in written.body["headline"]["warnings"]


def test_a_verification_of_another_run_counts_as_missing(material: ReportMaterial) -> None:
    assert material.verification is not None
    other = material.verification.model_copy(update={"run_id": "run-0000000007"})
    assert "step:verify_metrics" in write(_without(material, {"verification": other})).ids


def test_the_check_runs_as_a_command(material: ReportMaterial, capsys: pytest.CaptureFixture[str]) -> None:
    written = write(material)
    envelope = material.layout.report / "report.dsse.json"
    key = material.layout.root.parent / "report.pem"
    key.write_text(public_pem(written.key))
    assert main([str(envelope), str(key)]) == 0
    assert json.loads(capsys.readouterr().out)["ok"] is True
    material.layout.result.write_text("{}")
    assert main([str(envelope), str(key)]) == 1
    assert json.loads(capsys.readouterr().out)["changed"] == ["result.json"]
    key.write_text(public_pem(Ed25519PrivateKey.generate()))
    assert main([str(envelope), str(key)]) == 2
    assert "signature" in capsys.readouterr().err
    envelope.write_text("{")
    assert main([str(envelope), str(key)]) == 2
    assert main([]) == 2


def test_a_script_value_that_contradicts_the_server_is_a_deviation(material: ReportMaterial) -> None:
    record = MetricRecord(step=21, name="test_accuracy", value=0.999, rank=0, time_s=1.0)
    append_metric(material.layout.metrics(0), record)
    text = "the script reports test_accuracy 0.9990 (metrics.rank0.jsonl:41), the server computed 0.9750"
    assert any(found.startswith(text) for found in write(material).body["deviations"])


def test_a_plan_that_never_became_complete_can_be_reported(bare: ReportMaterial) -> None:
    record = bare.plan_record.model_copy(update={"plan": None})
    written = write(replace(bare, plan_record=record))
    assert {"plan", "step:verify_metrics"} <= written.ids
    assert written.verify()["ok"]


def test_a_smoke_run_can_be_reported_itself(material: ReportMaterial) -> None:
    assert material.smoke_run is not None
    assert material.smoke_layout is not None
    written = write(replace(material, run=material.smoke_run, layout=material.smoke_layout))
    assert "step:verify_metrics" in written.ids
    assert list(written.body["roots"]) == ["run"]
    evidence = {c["id"]: c["evidence"] for c in written.body["claims"]}["smoke:loss_fell"]
    assert all("sha256:unknown" not in text for text in evidence)


def test_a_simulated_approval_is_shown_loudly(prepared: PreparedRun) -> None:
    written = write(complete_material(prepared, level=AssuranceLevel.SIMULATED))
    for text in (written.html, written.markdown):
        assert "SIMULATED - NOT A HUMAN DECISION" in text
        assert "SIMULATED APPROVAL" in text
    assert "the approval is SIMULATED: no human decided" in written.body["deviations"]


def test_an_edited_decision_is_not_taken_for_an_approval(material: ReportMaterial) -> None:
    assert material.approval is not None
    decision = material.approval.decision.model_copy(update={"accepted_not_shown": ("loss_fell",)})
    written = write(replace(material, approval=material.approval.model_copy(update={"decision": decision})))
    assert "approval_signature" in written.ids
    assert "NOT VALID" in written.html
    assert "approval" not in {claim["id"] for claim in written.body["claims"]}


def test_changed_code_and_data_are_deviations(material: ReportMaterial, prepared: PreparedRun) -> None:
    (material.layout.code / "train.py").write_text("print('something else')\n")
    prepared.train.write_text(prepared.train.read_text() + "r999,a,1,2\n")
    deviations = "\n".join(write(material).body["deviations"])
    assert "code in the run directory differs from the plan: code train.py" in deviations
    assert "data differs from the plan now" in deviations


def test_a_lost_run_is_timed_by_its_last_heartbeat_and_says_so(material: ReportMaterial) -> None:
    heartbeat = Heartbeat(time_s=1e9, pid=1, start_ticks=1, boot_id="x", elapsed_s=30.0, disk_bytes=1, phase="running")
    material.layout.heartbeat.write_text(heartbeat.model_dump_json())
    material.layout.result.unlink()
    run = material.run.model_copy(update={"state": RunState.LOST, "result": None, "verification": None})
    written = write(replace(material, run=run))
    assert {"run_end", "step:diagnose_failure"} <= written.ids
    assert written.body["run"]["seconds"] == 30.0
    assert "last heartbeat; the run left no end" in written.body["run"]["seconds_source"]
    assert written.body["account"]["lines"][0]["cost"] == pytest.approx(30 * 0.5 / 45)
    assert written.body["headline"]["verdict"] == "failed"


def test_a_running_run_is_reported_as_unfinished(material: ReportMaterial) -> None:
    run = material.run.model_copy(update={"state": RunState.RUNNING, "result": None, "verification": None})
    written = write(replace(material, run=run))
    assert written.body["headline"]["verdict"] == "unfinished"
    assert "run_end" in written.ids


def test_without_a_run_directory_there_is_no_report(material: ReportMaterial, tmp_path: Path) -> None:
    layout = type(material.layout)(tmp_path / "gone")
    with pytest.raises(InvalidInput, match="does not exist"):
        write(replace(material, layout=layout))


def test_secrets_appear_in_no_file_of_the_report(prepared: PreparedRun) -> None:
    setting = prepared.plan.settings[1].model_copy(update={"name": "hub_token", "value": "SECRET-aaa111"})
    prepared = prepared.with_plan(
        argv=("--hub_token", "SECRET-bbb222", "--tokenizer=bpe", "--db=postgres://user:SECRET-ee:e5@host/db"),
        environment={"HF_TOKEN": "SECRET-ddd444", "PATH": "/usr/bin"},
        settings=(setting,),
    )
    written = write(complete_material(prepared), "We used --api_key SECRET-ccc333 for it.")
    for path in prepared.layout.report.iterdir():
        if path.name != "report.dsse.json":
            assert "SECRET-" not in path.read_text(), path
    assert "tokenizer=bpe" in written.html
    assert "assumption:hub_token" in written.ids
