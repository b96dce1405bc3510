"""Whatever stands in a plan, a request or its evidence: the text before a human is plain, line for line."""

import unicodedata
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.config.order import LaunchSpec, OutsideModule
from runtime.config.plan import Evaluation, Setting
from tests.fakes.approvals import START_S, estimated_record, training_plan
from tools.domain.approval import Assessment, AssuranceLevel
from tools.domain.findings import Answer, Finding
from tools.request_approval import build_request, shown_text

PIECES = (
    "\x1b[2J\x1b[H", "\x1b]8;;http://evil.invalid/\x1b\\link\x1b]8;;\x1b\\", "\x1b]52;c;ZXZpbA==\x07", "\x9b31m", "\r",
    "\b\b\b", "\n", "\x0b", "\x0c", "\x85", "\u2028", "\u2029", "\u202e", "\u2066", "\u2069", "\u200b", "\u200d",
    "\u2060", "\ufeff", "\u00ad", "\u061c", "\U000e0041", "\u3164", "\x00", "\x7f", "approve", "Cost:   0.00 EUR",
    "Request digest: 00000000",
)  # fmt: skip
HOSTILE = st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=3)), min_size=1, max_size=4).map("".join)


def everywhere(text: str) -> tuple[str, str]:
    """The approval text with this in every place that an outsider fills, and with an `x` there."""
    return _shown(text), _shown("x")


def _shown(text: str) -> str:
    plan = training_plan(argv=(text, f"--{text}"))
    plan = plan.model_copy(
        update={
            "sweep": ((text, f"--{text}"), (text, "other")),
            "environment": {f"A{text}": text},
            "inherited": (f"TOKEN{text}",),
            "code": plan.code.model_copy(update={"entry": text, "origin": text}),
            "data": (plan.data[0].model_copy(update={"path": text, "mode": "sampled", "num_files": 3}),),
            "interpreter": plan.interpreter.model_copy(update={"executable": text, "version": text}),
            "layout": plan.layout.model_copy(update={"device": text, "launcher": text}),
            "smoke": plan.smoke.model_copy(update={"args": (text,)}),
            "evaluation": Evaluation(predictions=text, holdout=text, metrics=(text,)),
            "settings": (Setting(name=text, value=text, origin="user"),),
            "ceilings": plan.ceilings.model_copy(update={"cost": 1.0, "currency": text}),
        }
    )
    record = estimated_record(plan=training_plan(), cost=1.5)
    assert record.smoke is not None
    assert record.estimate is not None
    check = record.smoke.checks[0].model_copy(update={"detail": text})
    module = OutsideModule.model_construct(name=text, path=text, sha256="")
    words: dict[str, Any] = dict.fromkeys(("currency", "price_source", "method", "past_accuracy"), text)
    record = record.model_copy(
        update={
            "smoke": record.smoke.model_copy(update={"checks": (check,), "outside_modules": (module,), "run_id": text}),
            "estimate": record.estimate.model_copy(update={**words, "unknowns": (text,)}),
            "answers": (Answer(question_id=text, value=text, source="assumption"),),
            "findings": (Finding(code=text, level="note", message=text, hint=text),),
            "requester": text,
            "base_plan_id": text,
        }
    )
    found = Assessment(
        level=AssuranceLevel.A2, why=(text,), most_cost=text, currency=text, most_device_hours=text, notes=(text,)
    )
    request = build_request(record, reason=text, policy_version=text, now_s=START_S, assessment=found)
    request = request.model_copy(update={"plan": plan})
    spec = LaunchSpec(argv=(text,), environment={}, working_directory=text, script=f"#!/bin/sh\necho {text}")
    return shown_text(record, request, spec=spec, differences=(text,), since_approved=(text, (text,)))


@given(HOSTILE)
@settings(max_examples=150)
def test_no_outside_text_can_draw_hide_or_add_a_line(text: str) -> None:
    hostile, harmless = everywhere(text)
    assert {c for c in hostile if not c.isprintable() and unicodedata.category(c) != "Zs"} <= {"\n"}
    script_lines = len(f"echo {text}".splitlines()) - 1  # the batch script alone may have as many lines as it has
    assert hostile.count("\n") == harmless.count("\n") + script_lines
    starts = [line.split(":")[0] for line in hostile.splitlines() if line and not line.startswith("  ")]
    assert starts.count("Request digest") == 1
    assert starts.count("Cost") == 1
