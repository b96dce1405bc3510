"""The two tasks that the demo and the tests give to the agent, each laid out as a user's project directory."""

import shutil
import sys
from pathlib import Path

from examples.demo_agent import Task
from examples.prepare_data import PARTS, prepare

HERE = Path(__file__).resolve().parent


def digits_project(project: Path) -> Task:
    """Handwritten digits, on forerun's runtime."""
    data = lay_out(project, script=HERE / "digits" / "train.py", data_set="digits")
    options = ("--output", "{run_dir}")
    return Task(
        script=str(project / "train.py"),
        args=(*data_options(data), *options, "--epochs", "12"),
        smoke_args=(*data_options(data), *options, "--epochs", "1"),
        data=tuple(f"{part}={path}" for part, path in data.items()),
        settings={"num_processes": "2", "device": "cpu"},
        answers={"seed": "0", "wall_time_s": "600"},
        evaluation={
            "predictions": "predictions.csv",
            "holdout": str(data["holdout"]),
            "train": str(data["train"]),
            "task": "classification",
            "metrics": "accuracy",
            "baselines": "majority,linear",
        },
        python=sys.executable,
        reason="Train the digit classifier and measure its accuracy on held-out digits.",
    )


def diabetes_project(project: Path) -> Task:
    """The progression of diabetes, by a script that knows nothing of forerun."""
    data = lay_out(project, script=HERE / "trainer_style" / "train.py", data_set="diabetes")
    options = ("--output_dir", "output", "--seed", "0")
    return Task(
        script=str(project / "train.py"),
        args=(*data_options(data), *options, "--epochs", "20"),
        smoke_args=(*data_options(data), *options, "--max_steps", "24", "--logging_steps", "1"),
        data=tuple(f"{part}={path}" for part, path in data.items()),
        settings={"num_processes": "2", "device": "cpu", "seed": "0", "wall_time_s": "600", "smoke_steps": "24"},
        evaluation={
            "predictions": "work/output/predictions.csv",
            "holdout": str(data["holdout"]),
            "train": str(data["train"]),
            "task": "regression",
            "metrics": "rmse,mae",
            "baselines": "mean,linear",
        },
        python=sys.executable,
        reason="Predict the progression of diabetes and measure the error on held-out patients.",
    )


def lay_out(project: Path, *, script: Path, data_set: str) -> dict[str, Path]:
    """Copy the script into `project` and write the data below it; returns part -> file."""
    project.mkdir(parents=True)
    shutil.copy(script, project / "train.py")
    return dict(zip(PARTS, prepare(data_set, project / "data"), strict=True))


def data_options(data: dict[str, Path]) -> tuple[str, ...]:
    return tuple(text for part, path in data.items() for text in (f"--{part}", str(path)))
