"""Secrets in text, found and masked. Whatever a job printed passes here before it leaves the job's own logs."""

import re
from collections.abc import Iterator, Sequence

MASK = "***"


def redact(text: str) -> str:
    """`text` with the values of secrets replaced by `***`; names and everything else stay.

    A value is a secret because of the name before it (`hub_token=`, `--wandb.key X`, `'api_key': 'X'`,
    `Authorization: Basic X`), because of its place (the password in a URL), or because of its own form (`hf_...`, a
    private key block). Names that only look alike (tokenizer, max_tokens, key_size, eos_token) keep their values.
    """
    pieces: list[str] = []
    position = 0
    for start, end in secret_spans(text):
        pieces += (text[position:start], MASK)
        position = end
    return "".join(pieces) + text[position:]


def secret_spans(text: str) -> list[tuple[int, int]]:
    """Where the secrets of `text` are: disjoint [start, end) ranges in order. Colour codes and zero-width characters,
    raw or already made visible, hide none."""
    bare, places = _without_decoration(text)
    merged: list[tuple[int, int]] = []
    for bare_start, bare_end in sorted({*_named(bare), *_placed(bare)}):
        if bare_start == bare_end:
            continue
        start, end = places[bare_start], places[bare_end - 1] + 1
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


_DECORATION = re.compile(
    r"(?:\x1b|\\x1b)\[[0-?]{0,30}[ -/]{0,5}[@-~]|[\u200b-\u200f\u2060-\u2064\ufeff\u00ad]|\\u(?:20[06][0-9a-f]|feff)"
)


def _without_decoration(text: str) -> tuple[str, Sequence[int]]:
    """`text` less what only decorates it, and the place in `text` of each character that is left."""
    if not _DECORATION.search(text):
        return text, range(len(text))
    places: list[int] = []
    position = 0
    for match in _DECORATION.finditer(text):
        places += range(position, match.start())
        position = match.end()
    places += range(position, len(text))
    return "".join(text[place] for place in places), places


_NAME = re.compile(
    r"""(?<![A-Za-z0-9_.\-])(?P<name>[A-Za-z0-9_.\-]++)
    (?:(?P<between>\\?["']\s{0,8},\s{0,8}(?=\\?["']))
      |\\?["']?\s{0,8}(?:\[[^\]\s]{0,40}\]\s{0,8})?(?:=>|:=|==?|:|%3[dD])(?!//)\s{0,8}
      |(?P<space>\s{1,8}))""",
    re.VERBOSE,
)
_QUOTED = r"""(?:[bru]?"(?:[^"\\\n]|\\.)*+"?|[bru]?'(?:[^'\\\n]|\\.)*+'?)"""
_VALUE = re.compile(
    rf"""\[[^\[\]\n]{{0,2000}}\] | \\"(?:(?!\\")[^\n])*+(?:\\")? | \\'(?:(?!\\')[^\n])*+(?:\\')?
      | {_QUOTED}(?:{_QUOTED})*+
      | [^\s'"]+(?:"[^"\n]*"|'[^'\n]*'|[^\s'"]+)*+""",
    re.VERBOSE | re.DOTALL,
)
_VALUE_IN_QUOTES = re.compile(rf"""{_QUOTED}|[^\s'"]+""", re.DOTALL)
_HEADER_VALUE = re.compile(r"""\\?"[^"\n]*+"?|\\?'[^'\n]*+'?|[^'"\r\n]+""")
_BARE_HEADER_VALUE = re.compile(r"[^\r\n]+")
_RANDOM = r"(?=[^\s'\"]*(?:\d|(?-i:[A-Z]{3})))[^\s'\",;)]{8,}"  # after a mere space, only what is no word of a sentence
_RANDOM_VALUE = re.compile(_RANDOM)
_HARMLESS_VALUE = re.compile(r"(?:[-+]?\d{1,6}(?:\.\d{1,6})?|true|false|none|null|nan)[,;)\]}]*\Z", re.IGNORECASE)


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


_ALWAYS = _set(
    "secret secrets password passwords passwd passphrase pwd credential credentials apikey apikeys authtoken apitoken "
    "accesstoken accesskey secretkey privatekey"
)
_FUSED = (
    "password",
    "passwd",
    "passphrase",
    "apikey",
    "secretkey",
    "accesskey",
    "authtoken",
    "accesstoken",
)  # PGPASSWORD
_AS_LAST = _set("token key auth authorization bearer cookie pat jwt signature sig sas pass")
_ONLY_QUALIFIED = _set("key pass signature sas")
_HEADERS = _set("authorization cookie")
_HARMLESS_BEFORE = {
    "token": _set(
        "eos bos pad unk sep cls mask special stop start end image video audio added per next new num max min first "
        "last each decoder forced prefix suffix unexpected invalid previous a the this one every by"
    ),
    "key": _set(
        "sort primary foreign label image text id group cache dict column feature field partition join public json "
        "index state dropout split data dataset input output target metric loss row map lookup config missing "
        "unexpected registry unique composite hash order answer question prompt response batch a the this"
    ),
}
_NO_WORDS: frozenset[str] = frozenset()
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def _named(text: str) -> Iterator[tuple[int, int]]:
    covered = 0
    for match in _NAME.finditer(text):
        if match.end() <= covered:
            continue
        option = match["name"].startswith("-")
        spaced = match["space"] and not ("_" in match["name"] and _RANDOM_VALUE.match(text, match.end()))
        if not option and (spaced or (match["between"] and not _is_header_name(match["name"]))):
            continue
        if match["name"] in ("PWD", "OLDPWD") and text[match.end() : match.end() + 1] == "/":
            continue  # the shell's working directory
        words = _words(match["name"])
        if not _is_secret_name(words, option=option):
            continue
        start = match.end()
        value = _value_pattern(text, start, words[-1]).match(text, start)
        if value is None or (match["space"] and value[0].startswith("-")):
            continue
        if words[-1] in ("token", "key") and _HARMLESS_VALUE.match(value[0].strip("'\"")):
            continue
        covered = value.end()
        yield _without_quotes(text, start, covered)


def _value_pattern(text: str, start: int, last_word: str) -> re.Pattern[str]:
    before = text[max(text.rfind("\n", 0, start) + 1, start - 2000) : start]
    inside = before.count("'") % 2 or before.count('"') % 2
    if last_word in _HEADERS:
        return _HEADER_VALUE if inside or text[start : start + 1] in ("'", '"', "\\") else _BARE_HEADER_VALUE
    return _VALUE_IN_QUOTES if inside and text[start : start + 1] not in ("'", '"', "\\") else _VALUE


def _is_header_name(name: str) -> bool:
    return name.lower().startswith("x-") or name.lower() in ("authorization", "proxy-authorization", "cookie")


def _words(name: str) -> list[str]:
    words = [w for w in re.split(r"[^A-Za-z0-9]+", _CAMEL.sub("_", name).lower()) if w]
    while len(words) > 1 and (words[-1].isdigit() or words[-2:] in (["key", "id"], ["key", "value"])):
        words.pop()
    return [w.rstrip("0123456789") or w for w in words] or [""]


def _is_secret_name(words: list[str], *, option: bool) -> bool:
    if any(word in _ALWAYS or word.endswith(_FUSED) for word in words):
        return True
    last = words[-1]
    if last not in _AS_LAST:
        return False
    if len(words) == 1:
        return option or last not in _ONLY_QUALIFIED
    return words[-2] not in _HARMLESS_BEFORE.get(last, _NO_WORDS)


def _without_quotes(text: str, start: int, end: int) -> tuple[int, int]:
    """The span less the quotes around it, so that the masked text still reads as what it was."""
    while end - start >= 2 and text[start] in "\\'\"" and (text[start] == "\\" or text[end - 1] == text[start]):
        if text[start] == "\\" and text[start + 1] not in "'\"":
            break
        start += 1
        if text[start - 1] != "\\":
            end -= 1
            if text[end - 1] == "\\":
                end -= 1
            break
    return start, end


_PLACES = (
    # user:password@host; the password may hold colons and at-signs, a port is no password
    re.compile(r"""://[^\s'"/@:]{0,200}:(?!\d{1,5}(?:[/\s'"]|$))(?P<secret>[^\s'"]{1,1000})@"""),
    re.compile(r"""://(?P<secret>[^\s'"/@:]{12,300})@"""),
    re.compile(r"(?i)\bbearer\s+(?P<secret>[A-Za-z0-9._~+/=\-]{8,})"),
    re.compile(r"\b(?P<secret>(?:hf_|ghp_|gho_|ghu_|ghs_|ghr_|github_pat_|glpat-|sk-|xox[abcdeprs]-|AIza)[\w\-]{12,})"),
    re.compile(r"\b(?P<secret>(?:xapp-\d|GOCSPX|pypi|dckr_pat|dop_v1|[srp]k_(?:live|test)|whsec)[_\-][\w\-]{16,})"),
    re.compile(r"\b(?P<secret>(?:npm_[A-Za-z0-9]{30,}|r8_[A-Za-z0-9]{30,}|dapi[0-9a-f]{32}|ya29\.[\w\-]{20,}))"),
    re.compile(
        r"\b(?P<secret>(?:nvapi-|gsk_|gl(?:rt|dt|cbt|ptt|ft|soat|agent|imt)-|lsv2_(?:pt|sk)_|xai-|pplx-)[\w\-]{16,})"
    ),
    re.compile(r"\b(?P<secret>(?:tgp_v1_|ATATT3|rpa_|sbp_|hvs\.|lin_api_|ntn_)[\w\-=.]{24,})"),
    # in a sentence: `API key: X`, `Using API key X`, `the password is X`, `passphrase "X"`
    re.compile(
        rf"""(?i)\b(?:api|access|secret|auth|bearer|refresh|security)[ ](?:key|token)(?:[ ]is)?
        (?:\s{{0,3}}[:=]\s{{0,3}}['"]?(?P<secret>[^\s'",;)]{{6,}})|\s['"]?(?P<other>{_RANDOM}))""",
        re.VERBOSE,
    ),
    re.compile(rf"(?i)\b(?:password|passphrase|token|secret) (?:is |was )?['\"]?(?P<secret>{_RANDOM})"),
    re.compile(r"(?i)\b(?:password|passphrase) (?:is |was )?(?P<quote>['\"])(?P<secret>[^'\"\n]{4,200})(?P=quote)"),
    # names and values as attributes, elements or pairs: XML, Kubernetes, task definitions
    re.compile(
        r"(?i)<[\w.:\-]{0,60}(?:password|passwd|secret|token|api_?key)(?:\s[^<>\n]{0,200})?>(?P<secret>[^<\n]+)</"
    ),
    re.compile(
        r"""(?i)\b(?:name|key)["']?\s{0,3}[=:]\s{0,3}["']?[\w.\-]{0,60}(?:password|passwd|secret|token|api_?key|access_?key)["']?
        [\s,]{1,40}["']?value["']?\s{0,3}[=:]\s{0,3}["']?(?P<secret>[^\s"',}>]+)""",
        re.VERBOSE,
    ),
    re.compile(r"\bwandb login\s{1,4}(?:--\S{1,60}\s{1,4}){0,4}(?P<secret>[A-Za-z0-9\-]{16,})"),
    re.compile(r"\blogin\([^)\n]{0,120}?\bkey\s{0,3}=\s{0,3}['\"](?P<secret>[^'\"\n]+)"),
    re.compile(r"\b(?:mysql|mysqldump|mysqladmin|mariadb)\s(?:[^\n|;]{0,200}?\s)?-p(?P<secret>[^\s'\"]+)"),
    re.compile(r"\b(?P<secret>SG\.[\w\-]{16,64}\.[\w\-]{16,64})"),
    re.compile(r"\bhooks\.slack\.com/(?:services|workflows)/(?P<secret>[\w/\-]{8,})"),
    # .netrc, in one line or several; curl -u user:password (numbers are a user and a group); sshpass -p
    re.compile(r"\b(?:login|user|account|machine)\s{1,20}\S{1,200}\s{1,20}password\s{1,20}(?P<secret>\S+)"),
    re.compile(r"""(?:\s-u|--(?:proxy-)?user)[\s=]{1,8}['"]?[^\s:'"/]{1,200}:(?!//|\d+(?:\s|$))(?P<secret>[^\s'"]+)"""),
    re.compile(r"\bsshpass\s{1,8}-p\s{0,8}(?P<secret>\S+)"),
    re.compile(r"\b(?P<secret>(?:AKIA|ASIA)[0-9A-Z]{16})\b"),
    re.compile(r"\b(?P<secret>eyJ[\w\-]{8,4000}\.[\w\-]{8,4000}\.[\w\-]*)"),
    re.compile(r"(?s)-----BEGIN [A-Z ]*PRIVATE KEY(?: BLOCK)?-----(?P<secret>.*?)(?:-----END|\Z)"),
)


def _placed(text: str) -> Iterator[tuple[int, int]]:
    for pattern in _PLACES:
        for match in pattern.finditer(text):
            span = match.span("secret")
            yield span if span[0] >= 0 else match.span("other")
