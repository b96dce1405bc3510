"""The one table of options: flags, variables, file keys and the wizard's questions are looked up here."""

import difflib
from collections.abc import Iterable
from functools import cache

from .backend_options import BACKEND_OPTIONS
from .launch_options import LAUNCH_OPTIONS
from .option_kinds import Option

FORMAT_KEY = "forerun_config"
FORMAT = 1


@cache
def table() -> dict[str, Option]:
    """Every option by name, in the order in which help and files show them."""
    return {option.name: option for option in (*LAUNCH_OPTIONS, *BACKEND_OPTIONS)}


@cache
def own_keys() -> dict[str, Option]:
    """Key in a file of ours, in full -> option."""
    return {option.key: option for option in table().values() if option.in_file}


@cache
def peer_keys() -> dict[str, Option]:
    """Key in a file of Accelerate's, in full -> option."""
    return {key: option for option in table().values() for key in option.peer}


@cache
def all_keys() -> dict[str, Option]:
    """Whatever a file without our format mark may use: our keys, Accelerate's, and plain names of options."""
    names = {option.name: option for option in table().values() if option.in_file}
    return {**names, **peer_keys(), **own_keys()}


@cache
def variables() -> dict[str, Option]:
    """Environment variable -> option."""
    return {option.variable: option for option in table().values()}


def nearest(word: str, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """The known word that was probably meant; empty if none is near."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=cutoff)
    return near[0] if near else ""
