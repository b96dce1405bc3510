"""Does a job of a known size fit a device: yes, no, or not to be known."""

from typing import Literal, NamedTuple

from ..domain.reports import Device


class FitAnswer(NamedTuple):
    answer: Literal["fits", "does not fit", "unknown"]
    reason: str


def fits(device: Device, needed_bytes: int) -> FitAnswer:
    """Compare with what is free where that is known, else with the total; shared memory is never promised."""
    if not device.usable:
        return FitAnswer("does not fit", f"the device cannot be used: {'; '.join(device.reasons)}")
    room = device.memory_total_bytes if device.memory_free_bytes is None else device.memory_free_bytes
    if room is None:
        return FitAnswer("unknown", "; ".join(device.reasons) or "the device's memory is unknown")
    if device.memory_kind == "unified":
        return FitAnswer("unknown", "shared memory, cannot be guaranteed")
    word: Literal["fits", "does not fit"] = "fits" if needed_bytes <= room else "does not fit"
    return FitAnswer(word, f"{needed_bytes} bytes are needed, {room} are free")
