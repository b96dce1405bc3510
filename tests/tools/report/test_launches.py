"""The report says how a run came to be launched, how often it was started, and which run of a sweep it is."""

from dataclasses import replace

from tests.fakes.prepared_run import PreparedRun
from tests.fakes.report_material import write
from tools.provenance_report import ReportMaterial
from tools.report.material import FreeLaunch


def test_a_launch_in_the_free_tier_names_its_policy(material: ReportMaterial) -> None:
    free = replace(material, request=None, approval=None, free_launch=FreeLaunch("lab-7", material.created_at_s))
    written = write(free)
    assert written.body["free_launch"]["policy_version"] == "lab-7"
    for text in (written.markdown, written.html):
        assert "Launched without approval on" in text
        assert "the free tier of policy lab-7 covered it" in text
    reasons = {gap.id: gap.reason for gap in written.summary.not_verified}
    assert "free tier of policy lab-7" in reasons["step:request_approval"]
    assert write(replace(free, free_launch=None)).body["free_launch"] is None


def test_the_policy_of_an_approval_stands_in_both_renderings(material: ReportMaterial) -> None:
    written = write(material)
    assert written.body["approval"]["policy_version"] == "shipped-1"
    assert "policy shipped-1" in written.markdown
    assert "policy shipped-1" in written.html


def test_attempts_are_shown_and_more_than_one_is_a_deviation(material: ReportMaterial) -> None:
    assert write(material).body["run"]["attempts"] == 1
    assert material.run.result is not None
    again = material.run.model_copy(update={"result": material.run.result.model_copy(update={"attempts": 3})})
    written = write(replace(material, run=again))
    assert written.body["run"]["attempts"] == 3
    assert "- attempts: 3" in written.markdown
    assert any("started again: 3 attempts" in text for text in written.body["deviations"])


def test_a_run_of_a_sweep_is_named_with_its_own_arguments(material: ReportMaterial, prepared: PreparedRun) -> None:
    sweep = (prepared.plan.argv, ("--lr", "0.7", "--epochs", "3"))
    plan = prepared.plan.model_copy(update={"sweep": sweep})
    record = material.plan_record.model_copy(update={"plan": plan, "plan_digest": plan.digest})
    run = material.run.model_copy(update={"member": 2, "plan_digest": plan.digest})
    assert material.approval is not None
    approval = material.approval.model_copy(update={"used_by": None, "used_for": {"1": "run-1", "2": run.run_id}})
    written = write(replace(material, plan_record=record, run=run, approval=approval))
    assert (written.body["run"]["member"], written.body["plan"]["arguments"]) == (2, "--lr 0.7 --epochs 3")
    assert len(written.body["plan"]["sweep"]) == 2
    assert "run 2 of a sweep of 2" in written.markdown
    assert "run 2 of" in written.html
    assert not any("used by run" in text for text in written.body["approval"]["signature_problems"])
    foreign = approval.model_copy(update={"used_for": {"2": "run-9"}})
    stolen = write(replace(material, plan_record=record, run=run, approval=foreign))
    assert "the approval was used by run run-9" in stolen.body["approval"]["signature_problems"]
