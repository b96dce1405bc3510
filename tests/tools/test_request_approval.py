"""What a human is asked, what is shown, and every reason why a plan may not launch, each with its difference."""

from dataclasses import dataclass, replace

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from runtime.config.order import LaunchSpec, OutsideModule
from tests.fakes.approvals import START_S, cost_estimate, estimated_record, smoke_result, training_plan
from tools.domain.approval import Approval, ApprovalRequest, ApproverKey, AssuranceLevel, Decision
from tools.domain.errors import InvalidInput, WrongStep
from tools.domain.findings import Answer
from tools.domain.plan_state import PlanRecord, PlanState
from tools.request_approval import (
    DECISION_TYPE,
    build_request,
    decision_payload,
    launch_refusals,
    missing_evidence,
    request_refusals,
    shown_text,
)
from tools.shown_plan import cost_words, short_digest
from tools.signatures import key_id, public_pem, sign

PRIVATE = Ed25519PrivateKey.generate()
PEM = public_pem(PRIVATE)
KEY = ApproverKey(key_id=key_id(PEM), approver="alice", public_pem=PEM, level=AssuranceLevel.A2, enrolled_at_s=START_S)
NOW_S = START_S + 60


@dataclass(frozen=True)
class Case:
    """Everything that launch_refusals looks at, all of it in order."""

    record: PlanRecord
    request: ApprovalRequest
    approval: Approval
    key: ApproverKey | None = KEY
    now_s: float = NOW_S
    required: AssuranceLevel = AssuranceLevel.A2

    def refusals(self) -> list[str]:
        return launch_refusals(
            self.record, self.request, self.approval, self.key, now_s=self.now_s, required=self.required
        )


def ask(record: PlanRecord) -> ApprovalRequest:
    return build_request(record, reason="it passed", policy_version="shipped-1", now_s=START_S)


def signed(request: ApprovalRequest, *, by: Ed25519PrivateKey = PRIVATE, **changes: object) -> Approval:
    decision = Decision(
        request_id=request.request_id,
        request_digest=request.digest,
        plan_digest=request.plan_digest,
        decision="approve",
        approver="alice",
        key_id=KEY.key_id,
        level=AssuranceLevel.A2,
        channel="terminal",
        shown_digest="0" * 64,
        decided_at_s=START_S + 30,
        nonce="n",
    ).model_copy(update=changes)
    return Approval(decision=decision, envelope=sign(decision_payload(decision), DECISION_TYPE, by))


def approved_case(record: PlanRecord | None = None) -> Case:
    record = record or estimated_record()
    request = ask(record)
    accepted = missing_evidence(record.smoke)
    return Case(
        record.model_copy(update={"state": PlanState.APPROVED}), request, signed(request, accepted_not_shown=accepted)
    )


def test_what_was_approved_may_launch() -> None:
    assert approved_case().refusals() == []
    assert approved_case(estimated_record(not_shown=("loss_fell",))).refusals() == []


def test_nobody_asked_and_nobody_answered_are_reasons() -> None:
    case = approved_case()
    assert launch_refusals(case.record, None, None, None, now_s=NOW_S)[0].startswith("nobody was asked")
    assert launch_refusals(case.record, case.request, None, None, now_s=NOW_S) == [
        f"no human has decided on {case.request.request_id} yet"
    ]


PLAN = training_plan()


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"argv": ("--lr", "0.1")}, "0.1"),
        ({"code": training_plan(code="b" * 64).code}, "train.py"),
        ({"data": (PLAN.data[0].model_copy(update={"sha256": "e" * 64}),)}, "train.csv"),
        ({"environment": {"PATH": "/usr/bin", "LR": "1"}}, "LR"),
        ({"interpreter": PLAN.interpreter.model_copy(update={"packages": {"torch": "2.6.0"}})}, "torch"),
        ({"layout": PLAN.layout.model_copy(update={"num_processes": 4})}, "4"),
        ({"seed": 8}, "8"),
        ({"ceilings": PLAN.ceilings.model_copy(update={"wall_time_s": 601.0})}, "601"),
    ],
)
def test_a_plan_that_changed_in_anything_is_named(changes: dict[str, object], named: str) -> None:
    case = approved_case()
    plan = PLAN.model_copy(update=changes)
    record = case.record.model_copy(update={"plan": plan, "plan_digest": plan.digest})
    reasons = replace(case, record=record).refusals()
    assert reasons[0].startswith("the plan is not the one that was asked about: ")
    assert named in reasons[0]


def test_a_plan_row_whose_digest_was_left_behind_is_named() -> None:
    case = approved_case()
    other = case.record.model_copy(update={"plan": training_plan(argv=("--lr", "0.1"))})
    assert any("digest does not fit its content" in r for r in replace(case, record=other).refusals())


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        ("reason", "another reason", "edited since"),
        ("expires_at_s", START_S + 1e6, "edited since"),
        ("policy_version", "mine", "edited since"),
        ("estimate", cost_estimate(PLAN, cost=0.01), "the estimate is not the one that was asked about: cost"),
        ("plan", training_plan(argv=()), "its copy of the plan does not fit"),
        ("smoke_digest", "1" * 64, "smoke result is not the one"),
    ],
)
def test_a_request_edited_after_the_decision_is_named(field: str, value: object, named: str) -> None:
    case = approved_case()
    reasons = replace(case, request=case.request.model_copy(update={field: value})).refusals()
    assert any(named in reason for reason in reasons), reasons
    assert any("edited since" in reason for reason in reasons), reasons


def test_an_approval_expires_at_its_second_and_says_since_when() -> None:
    case = approved_case()
    assert replace(case, now_s=case.request.expires_at_s - 1).refusals() == []
    assert replace(case, now_s=case.request.expires_at_s).refusals() == ["the approval request expired 0 min ago"]
    assert replace(case, now_s=case.request.expires_at_s + 600).refusals() == [
        "the approval request expired 10 min ago"
    ]


def test_a_decision_dated_outside_the_request_is_refused() -> None:
    case = approved_case()
    for time_s in (START_S - 1, case.request.expires_at_s + 1):
        late = signed(case.request, decided_at_s=time_s)
        assert replace(case, approval=late).refusals() == ["the decision was made outside the time of the request"]


def test_a_used_approval_names_its_run() -> None:
    case = approved_case()
    used = case.approval.model_copy(update={"used_by": "run-0000000000"})
    assert replace(case, approval=used).refusals() == [
        "the approval was used by run-0000000000: it is good for one run"
    ]


def test_a_refusal_is_none_and_carries_its_note() -> None:
    case = approved_case()
    assert replace(case, approval=signed(case.request, decision="refuse", note="too dear")).refusals() == [
        "alice refused it: too dear"
    ]


def test_a_decision_for_one_request_does_not_fit_another() -> None:
    first, second = approved_case(), approved_case()
    reasons = replace(first, approval=second.approval).refusals()
    assert any(f"on request {second.request.request_id}" in reason for reason in reasons)
    assert any("edited since" in reason for reason in reasons)


def test_removed_unknown_and_exchanged_keys_are_told_apart() -> None:
    case = approved_case()
    removed = KEY.model_copy(update={"removed_at_s": NOW_S})
    assert replace(case, key=removed).refusals() == [f"the key of alice ({KEY.key_id[:8]}) was removed"]
    assert replace(case, key=None).refusals() == [f"the decision's key {KEY.key_id[:8]} is not enrolled"]
    exchanged = KEY.model_copy(update={"public_pem": public_pem(Ed25519PrivateKey.generate())})
    assert replace(case, key=exchanged).refusals() == ["the public key of alice was exchanged: it does not fit its id"]


def test_a_decision_that_somebody_else_signed_is_refused() -> None:
    case = approved_case()
    forged = signed(case.request, by=Ed25519PrivateKey.generate())
    assert any("signature is not valid" in r for r in replace(case, approval=forged).refusals())


@pytest.mark.parametrize("change", [{"note": "x"}, {"accepted_not_shown": ("loss_fell",)}, {"nonce": "m"}])
def test_a_decision_edited_by_one_field_is_refused(change: dict[str, object]) -> None:
    case = approved_case()
    edited = case.approval.model_copy(update={"decision": case.approval.decision.model_copy(update=change)})
    assert replace(case, approval=edited).refusals() == [
        "the signature is of another decision: the decision was edited"
    ]


@pytest.mark.parametrize("part", ["payload", "sig"])
def test_an_envelope_changed_by_one_character_is_refused(part: str) -> None:
    case = approved_case()
    envelope = {**case.approval.envelope, "signatures": [dict(case.approval.envelope["signatures"][0])]}
    holder = envelope if part == "payload" else envelope["signatures"][0]
    text = holder[part]
    holder[part] = ("A" if text[8] != "A" else "B").join((text[:8], text[9:]))
    assert replace(case, approval=case.approval.model_copy(update={"envelope": envelope})).refusals()


@pytest.mark.parametrize("envelope", [{}, {"payload": 3}, {"payload": "", "payloadType": "x", "signatures": []}])
def test_an_envelope_of_ones_own_making_is_refused(envelope: dict[str, object]) -> None:
    case = approved_case()
    made_up = case.approval.model_copy(update={"envelope": envelope})
    assert any("signature is not valid" in r for r in replace(case, approval=made_up).refusals())


@pytest.mark.parametrize(
    ("level", "required", "enough"),
    [
        ("A2", "A2", True),
        ("A3", "A2", True),
        ("A2", "A3", False),
        ("simulated", "A2", False),
        ("simulated", "simulated", True),
        ("A4", "simulated", False),
    ],
)
def test_levels_are_ordered_and_simulated_stands_apart(level: str, required: str, enough: bool) -> None:
    case = approved_case()
    assurance = AssuranceLevel(level)
    case = replace(
        case,
        key=KEY.model_copy(update={"level": assurance}),
        approval=signed(case.request, level=assurance),
        required=AssuranceLevel(required),
    )
    expected = [] if enough else [f"the decision has level {level}, needed is {required}"]
    assert case.refusals() == expected


def test_missing_evidence_counts_only_when_accepted_by_name() -> None:
    record = estimated_record(not_shown=("loss_fell", "checkpoint_loads"))
    request = ask(record)
    case = Case(record, request, signed(request, accepted_not_shown=("loss_fell",)))
    assert case.refusals() == ["the smoke run did not show checkpoint_loads, and no human accepted that by name"]


def test_another_smoke_run_since_is_named() -> None:
    case = approved_case()
    again = case.record.model_copy(update={"smoke": smoke_result(PLAN, not_shown=("loss_fell",))})
    assert any("now not_shown by run-" in reason for reason in replace(case, record=again).refusals())
    gone = case.record.model_copy(update={"smoke": None})
    assert "there is no smoke run for this plan" in replace(case, record=gone).refusals()


def test_a_request_needs_smoke_run_and_estimate() -> None:
    record = estimated_record()
    for changes in ({"smoke": None}, {"estimate": None}, {"plan": None}, {"state": PlanState.SMOKED}):
        with pytest.raises(WrongStep):
            ask(record.model_copy(update=changes))
    failed = smoke_result(PLAN).model_copy(update={"verdict": "failed"})
    with pytest.raises(WrongStep):
        ask(record.model_copy(update={"smoke": failed}))
    with pytest.raises(InvalidInput):
        build_request(record, reason="x" * 3000, policy_version="p", now_s=START_S)


def test_two_requests_for_one_plan_have_different_digests() -> None:
    record = estimated_record()
    assert ask(record).digest != ask(record).digest
    assert request_refusals(record, ask(record), now_s=NOW_S) == []


def test_unknown_cost_is_a_word_and_a_cost_of_nothing_is_a_number() -> None:
    assert cost_words(cost_estimate(PLAN)) == "unknown"
    assert cost_words(cost_estimate(PLAN, cost=0.0)) == "0.00"


def show(record: PlanRecord) -> str:
    spec = LaunchSpec(argv=("torchrun", "train.py"), environment={}, working_directory="/runs/RUN/work")
    return shown_text(record, ask(record), spec=spec, differences=("argument 2: '0.01' -> '0.1'",))


def test_the_human_sees_what_the_approval_covers() -> None:
    record = estimated_record(not_shown=("loss_fell",)).model_copy(
        update={"answers": (Answer(question_id="seed", value="7", source="assumption"),), "base_plan_id": "plan-x"}
    )
    request = ask(record)
    text = shown_text(record, request, spec=None, differences=("seed: 6 -> 7",))
    for part in (
        request.digest,
        short_digest(request),
        request.plan_digest,
        "train.py of /home/user/project",
        "--lr 0.01",
        "--epochs 1",
        "Seed: 7",
        "seed: 6 -> 7",
        "seed = 7",
        "NOT_SHOWN",
        "not_shown loss_fell",
        "Cost:   unknown",
        "no price is known",
        "Not covered",
        "expires 2027-01-15 09:00:00 UTC",
        "Command: could not be shown",
    ):
        assert part in text, part
    assert "Command: torchrun train.py" in show(record)


def test_the_difference_comes_before_the_plan_itself() -> None:
    record = estimated_record().model_copy(update={"base_plan_id": "plan-x"})
    request = ask(record)
    text = shown_text(
        record, request, spec=None, differences=("seed: 6 -> 7",), since_approved=("plan-y", ("argument 2: 1 -> 2",))
    )
    places = [text.index(part) for part in ("plan-x:\n  seed: 6 -> 7", "plan-y, the last", "argument 2:", "Script:")]
    assert places == sorted(places)
    same = shown_text(record, request, spec=None, differences=(), since_approved=("plan-x", ()))
    assert "the last that was approved" not in same, "the base plan is not compared twice"


def test_modules_from_elsewhere_are_shown_and_a_flood_of_them_hides_nothing() -> None:
    record = estimated_record()
    assert record.smoke is not None
    many = tuple(OutsideModule(name=f"m{n}", path=f"/lib/m{n}.py", sha256="a" * 64) for n in range(1000))
    for modules, told in (
        (None, "NOT RECORDED by the smoke run"),
        ((), "Modules loaded from outside code and packages: none"),
        (many[:1], "m0 /lib/m0.py (sha256 aaaaaaaaaaaaaaaa)"),
        (many, "and 970 more, all under the smoke digest"),
    ):
        changed = record.model_copy(update={"smoke": record.smoke.model_copy(update={"outside_modules": modules})})
        text = shown_text(changed, ask(changed), spec=None, differences=())
        assert told in text
        assert text.count("\n") < 150


def test_a_sampled_digest_is_said_to_cover_less() -> None:
    sampled = PLAN.model_copy(update={"data": (PLAN.data[0].model_copy(update={"mode": "sampled"}),)})
    assert "Nor every byte" in show(estimated_record(sampled))
    assert "Nor every byte" not in show(estimated_record())


@pytest.mark.parametrize("hostile", ["\x1b[2J", "\r", "\x9b1A", "\u202e", "\u200b", "a\nCost:   0.00 EUR"])
def test_nothing_from_outside_can_draw_on_the_screen(hostile: str) -> None:
    plan = training_plan(argv=("--name", hostile))
    record = estimated_record(plan).model_copy(update={"requester": hostile})
    text = shown_text(
        record,
        build_request(record, reason=hostile, policy_version=hostile, now_s=START_S),
        spec=LaunchSpec(argv=(hostile,), environment={}, working_directory=hostile),
        differences=(hostile,),
    )
    assert all(character == "\n" or character.isprintable() for character in text)
    assert text.count("\nCost:   ") == 1
