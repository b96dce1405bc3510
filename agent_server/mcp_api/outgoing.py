"""The last gate before the wire: every string is made visible and stripped of secrets."""

from typing import Any

from tools.text import shown


def clean_text(text: str) -> str:
    """`text` with control characters shown as escapes (line breaks kept) and secrets masked."""
    return shown(text, keep_newlines=True)


def clean(value: Any) -> Any:
    """clean_text over every string in JSON data, keys included."""
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, dict):
        return {clean_text(str(key)): clean(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [clean(item) for item in value]
    return value
