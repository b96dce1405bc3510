"""A prepared run with everything that a report can be made from."""

from pathlib import Path

import pytest

from tests.fakes.prepared_run import PreparedRun, prepared_run
from tests.fakes.report_material import complete_material
from tools.provenance_report import ReportMaterial


@pytest.fixture
def prepared(tmp_path: Path) -> PreparedRun:
    """120 rows, of which the model gets 117 right."""
    found = prepared_run(tmp_path, labels=("a", "b", "c") * 40)
    found.predict(["b", "c", "a", *found.labels[3:]])
    return found


@pytest.fixture
def material(prepared: PreparedRun) -> ReportMaterial:
    return complete_material(prepared)


@pytest.fixture
def bare(material: ReportMaterial) -> ReportMaterial:
    """The same run with every step but the launch skipped."""
    return ReportMaterial(
        plan_record=material.plan_record.model_copy(update={"smoke": None, "estimate": None}),
        run=material.run.model_copy(update={"verification": None}),
        layout=material.layout,
        created_at_s=material.created_at_s,
    )
