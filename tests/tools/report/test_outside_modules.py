"""Modules from outside the snapshot: what only the full run loaded is a deviation, what nobody recorded a gap."""

import json
from dataclasses import replace

import pytest

from runtime.config.order import OutsideModule
from tests.fakes.report_material import write
from tools.provenance_report import ReportMaterial

ONE = OutsideModule(name="one", path="/lib/one.py", sha256="1" * 64)
TWO = OutsideModule(name="two\x1b[2J", path="/lib/two.py", sha256="2" * 64)


def with_modules(
    material: ReportMaterial, smoke: tuple[OutsideModule, ...] | None, full: tuple[OutsideModule, ...] | None
) -> ReportMaterial:
    record = material.plan_record
    assert record.smoke is not None
    if full is not None:
        material.layout.modules(0).write_text(json.dumps([m.model_dump() for m in full]))
    changed = record.smoke.model_copy(update={"outside_modules": smoke})
    return replace(material, plan_record=record.model_copy(update={"smoke": changed}))


def test_the_same_modules_in_both_runs_are_neither_a_deviation_nor_a_gap(material: ReportMaterial) -> None:
    written = write(with_modules(material, (ONE,), (ONE,)))
    assert "loaded_modules" not in written.ids
    assert not any("module" in text for text in written.body["deviations"])


def test_modules_first_seen_or_changed_in_the_full_run_are_deviations(material: ReportMaterial) -> None:
    changed = ONE.model_copy(update={"sha256": "3" * 64})
    written = write(with_modules(material, (ONE,), (changed, TWO)))
    told = [text for text in written.body["deviations"] if text.startswith("module ")]
    assert len(told) == 2
    assert "one (/lib/one.py) is another one than in the smoke run (111111111111 -> 333333333333)" in told[0]
    assert "first seen in this run" in told[1]
    assert "\x1b" not in told[1]


@pytest.mark.parametrize(("smoke", "full"), [(None, (ONE,)), ((ONE,), None), (None, None)])
def test_what_was_not_recorded_is_not_verified(
    material: ReportMaterial, smoke: tuple[OutsideModule, ...] | None, full: tuple[OutsideModule, ...] | None
) -> None:
    written = write(with_modules(material, smoke, full))
    assert "loaded_modules" in written.ids
