"""docs/api.md says of every name of the Accelerate API what it is here; each row is tried out."""

import importlib
import inspect
import re
from pathlib import Path
from typing import Any

import accelerate
import pytest

import runtime
from runtime.errors import AbsentAttributeError, NotInThisVersionError
from runtime.facade.absent import Absent

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "api.md"
PEER_MODULES = (
    "accelerate",
    "accelerate.state",
    "accelerate.data_loader",
    "accelerate.local_sgd",
    "accelerate.logging",
    "accelerate.tracking",
    "accelerate.utils",
    "accelerate.utils.operations",
    "accelerate.utils.random",
    "accelerate.utils.memory",
)
# Set by the constructors, here and there.
ATTRIBUTES = {
    "dataloader_config",
    "gradient_state",
    "log_with",
    "mixed_precision",
    "parallelism_config",
    "scaler",
    "state",
    "trackers",
}


def _table(title: str) -> dict[str, tuple[str, str]]:
    text = DOCUMENT.read_text().split(f"## {title}\n", 1)[1].split("\n## ", 1)[0]
    rows = re.findall(r"^\| `(\w+)` \| ([\w ]+) \| (.*?) ?\|$", text, re.MULTILINE)
    assert len({name for name, _, _ in rows}) == len(rows)
    return {name: (here, remark) for name, here, remark in rows}


NAMES = _table("Names of the package")
MEMBERS = _table("Members of Accelerator")


def _of_the_peer(name: str) -> Any:
    for module in map(importlib.import_module, PEER_MODULES):
        if hasattr(module, name):
            return getattr(module, name)
    return None


def _parameters(thing: Any) -> list[str] | None:
    if isinstance(thing, (staticmethod, classmethod)):
        thing = thing.__func__
    try:
        return [name for name in inspect.signature(inspect.unwrap(thing)).parameters if name not in ("self", "cls")]
    except (TypeError, ValueError):
        return None


def _require(here: str, remark: str, ours: Any, theirs: Any) -> None:
    if here == "ours alone":
        assert theirs is None
        assert remark
        return
    assert theirs is not None
    if here == "same":
        assert _parameters(ours) == _parameters(theirs)
    else:
        assert here == "different"
        assert _parameters(ours) != _parameters(theirs)
        assert remark


@pytest.mark.parametrize("name", NAMES)
def test_each_name_is_what_the_table_says(name: str) -> None:
    here, remark = NAMES[name]
    if here == "refused":
        assert name not in runtime.__all__
        with pytest.raises(NotInThisVersionError, match=f"runtime has no {name}: this version does not have {remark}"):
            getattr(runtime, name)
        assert _of_the_peer(name) is not None or name.endswith(("Tracker", "Kwargs"))
        return
    _require(here, remark, getattr(runtime, name), _of_the_peer(name))


@pytest.mark.parametrize("name", MEMBERS)
def test_each_member_of_the_accelerator_is_what_the_table_says(name: str, fresh_accelerator: Any) -> None:
    here, remark = MEMBERS[name]
    if here == "refused":
        with pytest.raises(AbsentAttributeError, match=f"Accelerator.{name}: .*this version does not have"):
            getattr(fresh_accelerator, name)
        assert not hasattr(fresh_accelerator, name)
        return
    assert hasattr(fresh_accelerator, name)
    ours = None if name in ATTRIBUTES else inspect.getattr_static(type(fresh_accelerator), name)
    theirs = vars(accelerate.Accelerator).get(name)
    if name in ATTRIBUTES or isinstance(theirs, property):
        assert here == "same"
    else:
        _require(here, remark, ours, theirs)


def test_the_tables_leave_nothing_out() -> None:
    members = {name for name in vars(accelerate.Accelerator) if not name.startswith("_")}
    own = {
        name
        for name in dir(runtime.Accelerator)
        if not name.startswith("_") and not isinstance(inspect.getattr_static(runtime.Accelerator, name), Absent)
    }
    assert members | own | ATTRIBUTES == set(MEMBERS)
    assert {*runtime.__all__, *runtime._LATER} == set(NAMES)
    exported = {name for name in dir(accelerate) if not name.startswith("_") and name[0] != name[0].lower()}
    assert exported <= set(NAMES)


def test_the_accelerator_takes_the_peers_arguments() -> None:
    ours, theirs = (_parameters(kind) for kind in (runtime.Accelerator, accelerate.Accelerator))
    assert ours is not None
    assert theirs is not None
    assert set(theirs) <= set(ours)


def test_importing_a_name_of_a_later_version_says_so() -> None:
    with pytest.raises(ImportError, match="runtime has no LocalSGD: this version does not have LocalSGD"):
        from runtime import LocalSGD  # noqa: F401
    with pytest.raises(ImportError, match="big-model loading"):
        from runtime.utils import load_checkpoint_in_model  # noqa: F401
