"""The doors: MCP for agents, command line for humans; approvals, policy and store behind them.

`runtime` and `tools` are common names: whatever PYTHONPATH puts first, this package takes those that lie beside it.
"""

import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from os.path import abspath, dirname


def _bind(name: str) -> None:
    spec = None if name in sys.modules else PathFinder.find_spec(name, [dirname(dirname(abspath(__file__)))])
    if spec is None:
        return
    sys.modules[name] = module_from_spec(spec)
    if spec.loader is not None:
        spec.loader.exec_module(sys.modules[name])


for _name in ("runtime", "tools"):
    _bind(_name)
