"""Who could approve stands in every report; a key that is new, or one more, is a deviation."""

from dataclasses import replace

from tests.fakes.report_material import write
from tools.provenance_report import ReportMaterial

DAY_S = 24 * 3600.0


def with_ages(material: ReportMaterial, *, own_s: float, others: tuple[str, ...] = ()) -> ReportMaterial:
    """The deciding key so old at the decision, and further keys enrolled since."""
    assert material.approval is not None
    assert material.approver_key is not None
    decided = material.approval.decision.decided_at_s
    own = material.approver_key.model_copy(update={"enrolled_at_s": decided - own_s})
    more = [own.model_copy(update={"approver": name, "key_id": name * 8, "enrolled_at_s": decided}) for name in others]
    return replace(material, approver_key=own, enrolled_keys=(own, *more))


def test_one_old_key_stands_in_the_report_and_deviates_from_nothing(material: ReportMaterial) -> None:
    written = write(with_ages(material, own_s=30 * DAY_S))
    assert len(written.body["approval"]["keys"]) == 1
    assert "Keys that this store knows" in written.html
    assert not any("key" in text for text in written.body["deviations"])


def test_a_new_key_and_one_more_key_are_deviations(material: ReportMaterial) -> None:
    written = write(with_ages(material, own_s=120.0, others=("mallory",)))
    told = [text for text in written.body["deviations"] if "key" in text]
    assert len(told) == 2
    assert "enrolled only 2 min before the decision" in told[0]
    assert "another key can approve beside the first: mallory" in told[1]
    assert "mallory" in written.html
