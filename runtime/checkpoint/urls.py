"""Which paths are URLs."""

import re
from pathlib import Path

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/{1,3}(.*)")


def as_url(path: str | Path | None) -> str | None:
    """The URL that `path` is (a Path has lost one of its slashes); None for a local path."""
    text = str(path or "")
    match = _URL.fullmatch(text)
    if match is None:
        return None
    scheme, rest = match.groups()
    return f"{scheme}:///{rest}" if scheme == "file" else f"{scheme}://{rest}"
