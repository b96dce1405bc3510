"""Metrics of any script: found where they are, dated by file and line, never invented, never counted twice."""

import json
import math
import time
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.layout import RunLayout
from runtime.records import SourcedMetric
from tests.fakes.run_directories import add_losses, add_metric, make_layout
from tools.evidence import iter_run_metrics, read_run_metrics
from tools.evidence.json_lines import metrics_in_json
from tools.evidence.trainer import find_trainer_state, metrics_in_dict, parse_dict


@pytest.fixture
def layout(tmp_path: Path) -> RunLayout:
    return make_layout(tmp_path / "run")


def brief(metrics: tuple[SourcedMetric, ...]) -> list[tuple[str, int | None, float, str]]:
    return [(m.record.name, m.record.step, m.record.value, f"{m.file}:{m.line}") for m in metrics]


def printed(layout: RunLayout, text: str | bytes, *, rank: int = 0) -> list[tuple[str, int | None, float, str]]:
    layout.stdout(rank).write_bytes(text if isinstance(text, bytes) else text.encode())
    return brief(read_run_metrics(layout))


def test_json_lines_count_by_a_loss_or_a_step(layout: RunLayout) -> None:
    lines = [
        '{"step": 3, "loss": 0.5, "lr": 1e-3, "ok": true, "name": "x", "more": {"loss": 1}}',
        '{"epoch": 2, "val_acc": 0.9}',
        '{"train/loss": 2}',
        '{"text": "loss", "label": 1}',
        '["loss", 1]',
        '{"loss": 0.1',
        'note {"loss": 0.1}',
    ]
    out = "logs/rank0.stdout.log"
    assert printed(layout, "\n".join(lines) + "\n") == [
        ("loss", 3, 0.5, f"{out}:1"),
        ("lr", 3, 0.001, f"{out}:1"),
        ("epoch", None, 2.0, f"{out}:2"),
        ("val_acc", None, 0.9, f"{out}:2"),
        ("train/loss", None, 2.0, f"{out}:3"),
    ]


def test_non_finite_values_are_values_and_huge_ones_are_passed_over(layout: RunLayout) -> None:
    found = printed(layout, '{"step": 1, "loss": NaN, "a": "Infinity", "b": 1' + "0" * 400 + ', "c": "1.5"}\n')
    assert [(name, math.isnan(value) or value) for name, _, value, _ in found] == [("loss", True), ("a", math.inf)]


@pytest.mark.parametrize("step", ["-1", "1.5", "NaN", "Infinity", '"7"', "true", "1e300"])
def test_a_step_that_is_none_is_unknown(step: str) -> None:
    found = list(metrics_in_json(f'{{"step": {step}, "loss": 1.0}}', rank=0))
    assert [(r.name, r.step) for r in found] == [("loss", None)]


def test_the_dicts_that_trainer_prints(layout: RunLayout) -> None:
    bar = b"  4%|\xe2\x96\x8d | 2/50 [00:01<00:20]"
    text = b"{'loss': 1.5, 'grad_norm': nan, 'learning_rate': 5e-05, 'epoch': 0.04}\n"
    text += bar + b"\r" + bar + b"{'loss': '0.69', 'grad_norm': '-inf', 'epoch': '0.08'}\n"
    text += b"{'eval_loss': np.float64(0.4), 'eval_x': tensor(2., device='cuda:0'), 'epoch': 0.08}\n"
    found = printed(layout, text)
    values = [(name, value) for name, _, value, _ in found if name not in ("epoch", "learning_rate")]
    assert values[0] == ("loss", 1.5)
    assert math.isnan(values[1][1])
    assert values[2:] == [("loss", 0.69), ("grad_norm", -math.inf), ("eval_loss", 0.4), ("eval_x", 2.0)]


@pytest.mark.parametrize("text", ["{'loss': __import__('os').system('x')}", "{'loss': 2**9**9}", "{'loss': open('x')}"])
def test_nothing_is_evaluated(text: str) -> None:
    assert list(metrics_in_dict(text, rank=0)) == []


@given(st.text(max_size=60))
def test_no_text_breaks_the_parsers(text: str) -> None:
    for line in (text, "{" + text + "}", "{'loss': " + text + "}", '{"loss": ' + text + "}"):
        assert isinstance(parse_dict(line), dict)
        list(metrics_in_dict(line, rank=0))
        list(metrics_in_json(line, rank=0))


@given(value=st.floats(allow_nan=False), step=st.integers(0, 10**9))
def test_printed_numbers_come_back_exactly(value: float, step: int) -> None:
    for found in (
        metrics_in_json(json.dumps({"step": step, "loss": value}), rank=0),
        metrics_in_dict(str({"step": step, "loss": value}), rank=0),
    ):
        assert [(r.step, r.value) for r in found] == [(step, value)]


def test_deep_nesting_is_passed_over(layout: RunLayout) -> None:
    assert (
        printed(layout, '{"loss":' + "[" * 30_000 + "\n" + "{'loss': " + "(" * 5_000 + "\n{'a':" + "-" * 9_000 + "1}")
        == []
    )


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("step 7 loss=0.5", [("loss", 7, 0.5)]),
        ("step 7 \x1b[32mloss\x1b[0m=\x1b[1m0.5\x1b[0m", [("loss", 7, 0.5)]),
        ("[rank0]:step 900/5000 loss 1.9123", [("loss", 900, 1.9123)]),
        ("iter: 40, train_loss: 1.2e-1, val/loss: nan", [("train_loss", 40, 0.12), ("val/loss", 40, math.nan)]),
        ("epoch 2 loss -0.5.", [("loss", None, -0.5)]),
        ("step 5 loss 0.5%", []),
        ("step 5 loss 1,234.5", []),
        ("step 5 loss nan_project", []),
        ("step 5 loss_scale 65536", []),
        ("step 5 lossless 3", []),
        ("loss 0.5", []),
        ("loading /data/nan_project/finance.csv", []),
        ("footstep 5 loss 0.5", []),
    ],
)
def test_plain_lines(layout: RunLayout, line: str, expected: list[tuple[str, int | None, float]]) -> None:
    found = [(name, step, value) for name, step, value, _ in printed(layout, line + "\n")]
    assert str(found) == str(expected)


def test_the_end_of_a_line_that_may_still_grow_is_not_trusted(layout: RunLayout) -> None:
    assert printed(layout, "step 1 loss 0.5\nstep 2 loss 0.1") == [("loss", 1, 0.5, "logs/rank0.stdout.log:1")]
    assert len(printed(layout, "step 1 loss 0.5\nstep 2 loss 0.1234\n")) == 2
    assert len(printed(layout, "step 1 loss 0.5\nstep 2 loss 0.1234 |")) == 2


def test_a_progress_bar_without_newlines_is_read_in_flat_memory(layout: RunLayout) -> None:
    with layout.stdout(0).open("w") as handle:
        for i in range(1, 30_001):
            handle.write(f"\r{i / 300:5.1f}% step {i} loss {0.1234 if i == 30_000 else 1 + 1 / i:.4f} |###|")
        handle.write("\nTraceback (most recent call last):\n" + "x" * 5_000_000)
    tracemalloc.start()
    begin = time.process_time()
    last = None
    for metric in iter_run_metrics(layout):
        last = metric
    assert tracemalloc.get_traced_memory()[1] < 2_000_000
    tracemalloc.stop()
    assert time.process_time() - begin < 30
    assert last is not None
    assert (last.record.step, last.record.value, last.line) == (30_000, 0.1234, 1)


def test_long_series_are_thinned_but_keep_their_ends_and_the_first_nan(layout: RunLayout) -> None:
    layout.stdout(0).write_text(
        "".join(f'{{"step":{i},"loss":{"NaN" if i == 30_001 else 0.5}}}\n' for i in range(1, 50_001))
    )
    steps = [m.record.step for m in read_run_metrics(layout)]
    assert len(steps) <= 20_002
    assert (steps[0], steps[-1]) == (1, 50_000)
    assert 30_001 in steps
    assert steps == sorted(set(steps), key=lambda s: s or 0)


def test_a_line_beyond_all_measure_is_no_metric(layout: RunLayout) -> None:
    assert printed(layout, '{"step": 1, "loss": 0.5, "x": "' + "y" * 100_000 + '"}\n') == []


def test_an_adapters_duplicates_of_the_runtimes_records_are_dropped(layout: RunLayout) -> None:
    add_losses(layout, 1.0, 0.9)
    found = printed(layout, '{"step":1,"loss":1.0}\n{"loss":0.9}\n{"step":3,"loss":0.8}\n{"step":1,"other_loss":1}\n')
    assert [(name, step) for name, step, _, _ in found] == [("loss", 1), ("loss", 2), ("loss", 3), ("other_loss", 1)]
    assert [m.record.origin for m in read_run_metrics(layout)] == ["script", "script", "adapter", "adapter"]


def test_a_worker_cannot_forge_origin_rank_or_name(layout: RunLayout) -> None:
    record = {"step": 1, "name": "acc\x1b[2J", "value": 1.0, "rank": 0, "time_s": 1.0, "origin": "server_scored"}
    layout.metrics(3).write_text(json.dumps(record) + "\n" + '{"step": Infinity}\n')
    (found,) = read_run_metrics(layout)
    assert (found.record.origin, found.record.rank, found.record.name) == ("script", 3, "acc\\x1b[2J")


def test_a_file_that_breaks_the_record_format_stops_nothing(layout: RunLayout) -> None:
    add_losses(layout, 1.0, rank=1)
    layout.metrics(0).write_text('{"step": 1e999, "name": "x", "value": 1, "rank": 0, "time_s": 1}\n')
    assert [name for name, *_ in brief(read_run_metrics(layout))] == ["loss"]


def test_standard_error_is_read_where_the_output_says_nothing(layout: RunLayout) -> None:
    layout.stdout(0).write_text("hello\n")
    layout.stderr(0).write_text("INFO step 1 loss 0.5\n")
    layout.stdout(1).write_text("step 1 loss 0.4\n")
    layout.stderr(1).write_text("step 1 loss 0.4\n")
    assert [(m.record.rank, m.file) for m in read_run_metrics(layout)] == [
        (0, "logs/rank0.stderr.log"),
        (1, "logs/rank1.stdout.log"),
    ]


def write_state(layout: RunLayout, name: str, history: list[dict[str, float]], *, step: int) -> None:
    path = layout.work / name / "trainer_state.json"
    path.parent.mkdir(parents=True)
    data = {"epoch": 0.5, "global_step": step, "max_steps": 50, "log_history": history}
    path.write_text(json.dumps(data, indent=2))


def test_trainer_state_gives_the_steps_that_printed_dicts_lack(layout: RunLayout) -> None:
    history = [{"epoch": 0.1, "loss": 1.51234, "step": 1}, {"epoch": 0.2, "loss": 1.4, "step": 2}]
    write_state(layout, "out/checkpoint-1", history[:1], step=1)
    write_state(layout, "out/checkpoint-2", history, step=2)
    layout.stdout(0).write_text(
        "{'loss': 1.5123, 'epoch': 0.1}\n{'loss': 1.4, 'epoch': 0.2}\n{'loss': 1.3, 'epoch': 0.3}\n"
    )
    losses = [m for m in read_run_metrics(layout) if m.record.name == "loss"]
    assert [(m.record.step, m.record.value) for m in losses] == [(None, 1.3), (1, 1.51234), (2, 1.4)]
    lines = (layout.work / "out/checkpoint-2/trainer_state.json").read_text().splitlines()
    assert [lines[m.line - 1].strip() for m in losses[1:]] == ["{", "{"]
    state = find_trainer_state(layout)
    assert state is not None
    assert (state.global_step, state.epoch, state.max_steps) == (2, 0.5, 50)


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"log_history": 3}', '{"log_history": [1, "x"]}', '{"log_history": []}']
)
def test_a_broken_trainer_state_is_passed_over(layout: RunLayout, content: str) -> None:
    (layout.work / "trainer_state.json").write_text(content)
    assert read_run_metrics(layout) == ()


def test_an_empty_or_missing_run_directory_has_no_metrics(tmp_path: Path) -> None:
    assert read_run_metrics(RunLayout(tmp_path / "nothing")) == ()


def test_times_are_unknown_where_the_source_has_none(layout: RunLayout) -> None:
    add_metric(layout, "loss", 1.0, step=1, time_s=5.0)
    layout.stdout(0).write_text('{"step":2,"loss":1}\n{"step":3,"loss":1,"timestamp":1700000000.5}\n')
    times = [m.record.time_s for m in read_run_metrics(layout)]
    assert (times[0], math.isnan(times[1]), times[2]) == (5.0, True, 1700000000.5)
