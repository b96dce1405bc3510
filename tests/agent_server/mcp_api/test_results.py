"""Results: the same facts as text and data, nothing that JSON cannot say, nothing that a terminal would obey."""

import json
import math

import pytest

from agent_server.mcp_api.reply import Reply, number
from agent_server.mcp_api.results import next_step
from agent_server.mcp_api.run_results import logs, status
from agent_server.procedure import Status
from tests.fakes.approvals import estimated_record, run_of, smoke_result, training_plan
from tools.domain.plan_state import PlanRecord, PlanState
from tools.domain.reports import LogPage, RunProgress
from tools.domain.run_state import RunState


def test_a_result_says_what_is_next_in_text_and_data_and_leaves_out_what_is_empty() -> None:
    result = Reply("It is done.", "list_work", {"a": "", "b": None, "c": [], "zero": 0, "no": False}).result()
    assert result.structured_content == {"zero": 0, "no": False, "next": "list_work"}
    assert result.content[0].text == "It is done.\nNext: list_work"  # type: ignore[union-attr]  # text


def test_every_string_is_made_visible_and_stripped_of_secrets_wherever_it_stands() -> None:
    dirty = "\x1b[31mred\u202e --hub_token hf_abcdefghijklmnopqrst"
    result = Reply(dirty, dirty, {"deep": [{"key \x07": [dirty]}]}).result()
    wire = result.model_dump_json()
    assert "hf_abcdefghijklmnopqrst" not in wire
    assert result.structured_content is not None
    ((key, (value,)),) = result.structured_content["deep"][0].items()
    for text in (key, value, result.structured_content["next"], result.content[0].text):  # type: ignore[union-attr]  # text
        assert not set("\x1b\u202e\x07") & set(text)
    assert "\\\\x1b[31mred" in wire


@pytest.mark.parametrize(("value", "shown"), [(math.nan, "nan"), (math.inf, "inf"), (0.1 + 0.2, 0.3), (7, 7)])
def test_numbers_are_such_as_json_knows(value: float, shown: object) -> None:
    assert number(value) == shown
    json.dumps(number(value), allow_nan=False)


def test_a_run_whose_loss_is_nan_says_so_and_names_what_is_unknown() -> None:
    record = estimated_record()
    run = run_of(record).model_copy(update={"state": RunState.RUNNING})
    progress = RunProgress(run_id=run.run_id, kind="full", state="running", step=3, loss=math.nan)
    result = status(Status(run.run_id, "running", False, record, run, progress)).result()
    assert result.structured_content is not None
    assert result.structured_content["loss"] == "nan"
    assert result.structured_content["unknown"] == ["remaining_s"]
    json.dumps(result.structured_content, allow_nan=False)


def test_log_lines_stand_in_text_and_data_with_the_cursor_that_goes_on() -> None:
    page = LogPage(run_id="run-0000000000", lines=("one", "two"), cursor="rank0.stdout:8", at_end=False)
    result = logs(page, stream="stdout", rank=0).result()
    assert result.structured_content is not None
    assert result.structured_content["lines"] == ["one", "two"]
    assert "cursor=rank0.stdout:8" in result.structured_content["next"]
    assert "one\ntwo" in result.content[0].text  # type: ignore[union-attr]  # text


@pytest.mark.parametrize("state", list(PlanState))
def test_every_state_of_a_plan_names_a_next_step(state: PlanState) -> None:
    record = estimated_record().model_copy(update={"state": state, "smoke": None})
    assert next_step(record)


def test_a_plan_whose_smoke_run_failed_leads_to_its_diagnosis() -> None:
    plan = training_plan()
    smoke = smoke_result(plan).model_copy(update={"verdict": "failed"})
    record = PlanRecord(
        plan_id="plan-0000000000",
        state=PlanState.VALID,
        requester="agent",
        created_at_s=0.0,
        plan=plan,
        plan_digest=plan.digest,
        smoke=smoke,
    )
    assert f"diagnose_failure(run_id={smoke.run_id})" in next_step(record)
    assert "base_plan_id=plan-0000000000" in next_step(record)
