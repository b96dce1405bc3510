"""The agent's summary against the evidence: accuracy 0.975 [0.9291, 0.9915] on 120 rows, 50 s, lr 0.05, seed 7."""

import pytest

from tests.fakes.prepared_run import PreparedRun, prepared_run
from tests.fakes.report_material import complete_material, write
from tools.provenance_report import ReportMaterial
from tools.report.numbers import tokens_of

SUPPORTED = [
    ("The model reached an accuracy of 0.975 on 120 held-out rows.", "server"),
    ("On held-out rows the accuracy was 97.5 % (95% interval 0.929 to 0.991, n = 120).", "server"),
    ("Accuracy 0.975 [0.929, 0.991].", "server"),
    ("0.975 accuracy, majority baseline 0.333.", "server"),
    ("It beats the majority baseline by 0.64.", "server"),
    ("It beats the majority baseline (McNemar p < 0.001).", "server"),
    ("Training loss fell from 2.0 to 0.1 over 20 steps.", "script"),
    ("The script's val_accuracy reached 0.9.", "script"),
    ("Trained on 2 processes with seed of 7 and lr 0.05 for 3 epochs in 50 seconds.", "plan"),
    ("The learning rate was 0.05.", "plan"),
    ("It cost 0.56 EUR.", "supervisor"),
    ("Peak memory was 0.5 GB.", "supervisor"),
    ("torch 2.13.0 was used.", "plan"),
    ("Nothing went wrong.", "none"),
]
UNSUPPORTED = [
    "Accuracy was 0.99.",
    "Accuracy is ninety-nine percent.",
    "Accuracy was \uff10.\uff19\uff19.",
    "Accuracy 100%.",
    "Accuracy 0.991.",
    "Accuracy 0.976.",
    "Accuracy 0.99acc.",
    "The accuracy 0.333 beats the majority baseline.",
    "We verified a val_accuracy of 0.9.",
    "The accuracy was 0.9.",
    "The loss fell to 0.01.",
    "It used 8 GPUs.",
    "It ran for 50 hours.",
    "The seed was 42.",
    "It is 3x faster.",
    "It doubled the throughput.",
    "Better than GPT-4.",
    "This is state-of-the-art.",
    "torch 2.14.0 was used.",
    "It ran on 2020-01-01.",
    "McNemar p < 1e-40.",
    "Accuracy < 0.99.",
    "F1 of 0.93 was seen.",
]


@pytest.fixture
def prepared(tmp_path_factory: pytest.TempPathFactory) -> PreparedRun:
    found = prepared_run(tmp_path_factory.mktemp("run"), labels=("a", "b", "c") * 40)
    found.predict(["b", "c", "a", *found.labels[3:]])
    return found


def test_sentences_that_evidence_supports(material: ReportMaterial) -> None:
    written = write(material, " ".join(text for text, _ in SUPPORTED))
    assert written.body["unsupported_claims"] == []
    assert [(item["sentence"], item["support"]) for item in written.body["summary"]] == SUPPORTED


def test_sentences_without_evidence_are_listed_and_never_printed_as_fact(material: ReportMaterial) -> None:
    written = write(material, "\n".join(UNSUPPORTED))
    assert list(written.summary.unsupported_claims) == UNSUPPORTED
    assert written.body["summary"] == []
    for text in ("Accuracy was 0.99.", "The seed was 42."):
        assert f"<s>{text}</s>" in written.html
        assert written.html.count(text) == 1
    assert "UNSUPPORTED" in written.html
    assert 'UNSUPPORTED: "The seed was 42."' in written.markdown


def test_without_verification_no_metric_is_supported(bare: ReportMaterial) -> None:
    written = write(bare, "Accuracy was 0.975 on 120 rows. The verified loss is 0.1.")
    assert len(written.summary.unsupported_claims) == 2


def test_a_mean_of_batch_means_is_rejected_and_explained(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Ten losses, eight of 1 and two of 5: 1.8 is right, 2.3333 is what batches of four make of it."""
    prepared = prepared_run(
        tmp_path_factory.mktemp("run"), task="regression", labels=[0.0] * 10, metrics=("mae",), baselines=()
    )
    prepared.predict([1.0] * 8 + [5.0, 5.0])
    written = write(complete_material(prepared), "The mae is 2.3333. The mae is 1.8.")
    assert written.summary.unsupported_claims == ("The mae is 2.3333.",)
    (item,) = written.body["unsupported_claims"]
    assert "the server computed mae = 1.8000 over 10 rows" in item["reason"]
    assert "the mean of 3 batch means at batch size 4" in item["reason"]


def test_an_overlong_summary_is_not_taken_on_trust(material: ReportMaterial) -> None:
    written = write(material, "Fine. " * 4_000 + "Accuracy 0.1234.")
    assert "(the rest of the summary)" in written.summary.unsupported_claims


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("1,234.5 and 1e-3", [1234.5, 0.001]),
        ("97 %, 97.5 percent", [0.97, 0.975]),
        ("run-4k2m9x0c7e used bf16, f1 and gpt2 for the 2nd time", []),
        ("twenty-one of two", [21.0, 2.0]),
        ("25s, 2 min, 1.5 GiB", [25.0, 120.0, 1.5 * 2**30]),
        ("-0.5 or 0.93-0.99", [-0.5, 0.93, 0.99]),
        ("10k rows", [10_000.0]),
        ("\u0663 runs", [3.0]),
    ],
)
def test_numbers_are_found_however_they_are_written(text: str, values: list[float]) -> None:
    assert [t.value for t in tokens_of(text) if t.kind == "number"] == pytest.approx(values)
