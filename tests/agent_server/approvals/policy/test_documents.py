"""Policy and price files at the door: every finding at once, with its line and the key that was meant."""

import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from agent_server.approvals.policy.documents import Document, read_document
from agent_server.approvals.policy.in_force import shipped_policy, shipped_text
from agent_server.approvals.policy.model import Policy
from tests.fakes.approvals import START_S
from tests.fakes.policies import PRICES, policy_text, write
from tools.domain.applied import DocumentKind
from tools.domain.approval import AssuranceLevel
from tools.domain.errors import InvalidInput
from tools.evidence.prices import PriceList


def read(tmp_path: Path, kind: DocumentKind, text: str) -> Document:
    return read_document(kind, write(tmp_path / f"{kind}.yaml", text), now_s=START_S)


def refusal(tmp_path: Path, kind: DocumentKind, text: str) -> str:
    with pytest.raises(InvalidInput) as caught:
        read(tmp_path, kind, text)
    return caught.value.what


def test_the_shipped_policy_asks_for_a2_everywhere_and_has_no_free_tier() -> None:
    policy = shipped_policy()
    assert policy.strictest is AssuranceLevel.A2
    assert policy.free_tier is None
    assert policy.budgets.set() == ()
    assert policy.currency is None


def test_a_policy_of_ones_own_is_read_with_exact_amounts(tmp_path: Path) -> None:
    text = policy_text(
        launches_cost="[{up_to: 0.10, needs: A2}, {needs: A3}]",
        budgets="{day: {cost: 0.30}, project: null, requester: null}",
    )
    found = read(tmp_path, "policy", text)
    assert isinstance(found.content, Policy)
    assert str(found.content.launches.cost[0].up_to) == "0.10"
    assert found.version == f"lab-1@{found.sha256[:12]}"
    assert "A3" in found.warnings[0]


def test_two_files_of_one_name_are_two_versions(tmp_path: Path) -> None:
    one = read(tmp_path, "policy", policy_text())
    two = read(tmp_path, "policy", policy_text() + "# a word more\n")
    assert one.version != two.version


def test_every_finding_comes_at_once_with_line_and_nearest_key(tmp_path: Path) -> None:
    text = shipped_text().replace("version: shipped-1", "version: Lab 1\ncurrency: EURO")
    text = (
        text.replace("  cost:  ", "  cots:  ").replace("free: A2", "free: A9").replace("day: null", "day: {cost: -3}")
    )
    lines = text.splitlines()
    what = refusal(tmp_path, "policy", text)
    for key, words in (
        ("version: Lab 1", "version: String should match"),
        ("currency: EURO", "did you mean EUR"),
        ("  cots:", "launches.cots: there is no such key; did you mean cost?"),
        ("free: A9", "allowed: A2, A3 or A4 (it is A9)"),
        ("day: {cost", "greater than or equal to 0 (it is -3)"),
    ):
        line = next(number for number, content in enumerate(lines, start=1) if key in content)
        assert f"line {line}: " in what, key
        assert words in what
    assert "launches.cost: the key is missing" in what
    assert "6 findings, nothing was changed" in what


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ("[{up_to: 5, needs: A2}]", "last row must have no `up_to`"),
        ("[]", "last row must have no `up_to`"),
        ("[{needs: A2}, {needs: A3}]", "only the last row"),
        ("[{up_to: 9, needs: A2}, {up_to: 5, needs: A2}, {needs: A3}]", "must grow"),
        ("[{up_to: 5, needs: A2}, {up_to: 5, needs: A2}, {needs: A3}]", "must grow"),
        ("[{up_to: 5, needs: A3}, {needs: A2}]", "must not need a lower level"),
        ("[{up_to: .nan, needs: A2}, {needs: A3}]", "finite"),
        ("[{up_to: .inf, needs: A2}, {needs: A3}]", "finite"),
        ("[{up_to: -1, needs: A2}, {needs: A3}]", "greater than or equal to 0"),
        ("[{up_to: yes, needs: A2}, {needs: A3}]", "no amounts"),
        ("[{up_to: '5 EUR', needs: A2}, {needs: A3}]", "valid decimal"),
        ("[{needs: A1}]", "allowed: A2, A3 or A4"),
        ("[{needs: simulated}]", "allowed: A2, A3 or A4"),
        ("[{needs: null}]", "allowed: A2, A3 or A4"),
    ],
)
def test_a_table_that_leaves_a_hole_or_grows_laxer_is_refused(tmp_path: Path, rows: str, words: str) -> None:
    assert words in refusal(tmp_path, "policy", policy_text(launches_cost=rows))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"version": "shipped-1"}, "name of a shipped policy"),
        ({"format": "2"}, "format"),
        ({"currency": "null", "budgets": "{day: {cost: 1}, project: null, requester: null}"}, "need `currency`"),
        ({"currency": "null", "free_tier": "{max_cost: 1, max_device_hours: 1, max_per_day: 1}"}, "need `currency`"),
        ({"budgets": "{day: {over_days: 3, cost: 1}, project: null, requester: null}"}, "a day is a UTC day"),
        ({"budgets": "{day: {}, project: null, requester: null}"}, "needs `cost` or `device_hours`"),
        ({"requests": "{expire_after_s: 999999999}"}, "less than or equal"),
        ({"launches_personal_data": "{absent: A2, present: A2, paths_without: [data]}"}, "absolute paths"),
        ({"launches_personal_data": "{absent: A2, present: A2, paths_without: [/a/../b]}"}, "absolute paths"),
        ({"launches_irreversible": "{none_seen: A2, signs: A2, words: ['']}"}, "at least 2"),
    ],
)
def test_a_policy_that_contradicts_itself_is_refused(tmp_path: Path, changes: dict[str, str], words: str) -> None:
    assert words in refusal(tmp_path, "policy", policy_text(**changes))


def test_a_budget_that_is_left_out_is_none(tmp_path: Path) -> None:
    found = read(tmp_path, "policy", policy_text(budgets="{day: {device_hours: 8}}")).content
    assert isinstance(found, Policy)
    assert [name for name, _ in found.budgets.set()] == ["day"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "holds no keys; allowed: format, version"),
        ("- a\n- b\n", "holds no keys"),
        ("version: [\n", "line 2: no YAML"),
        ("version: a\nversion: b\n", "line 2: version: the key is given twice"),
        ("a: &x [1]\nb: *x\n", "line 1: anchors and aliases"),
        ("version: !!python/object/apply:os.system [id]\n", "version"),
        ("{" * 5000, "no YAML"),
        ("version: \x00\n", "no YAML"),
        ("? [a]\n: 1\n", "plain word"),
    ],
)
def test_what_is_no_policy_is_named(tmp_path: Path, text: str, words: str) -> None:
    assert words in refusal(tmp_path, "policy", text)


def test_bytes_that_are_no_text_and_files_that_are_none_are_named(tmp_path: Path) -> None:
    (tmp_path / "latin").write_bytes(b"version: a\n# \xe9\n")
    (tmp_path / "large").write_bytes(b"#" * 300_000)
    os.mkfifo(tmp_path / "pipe")
    for name, words in (
        ("latin", "line 2: byte 13 is no UTF-8"),
        ("large", "allowed: up to"),
        ("pipe", "no file"),
        ("gone", "no file"),
        (".", "no file"),
    ):
        with pytest.raises(InvalidInput, match=words):
            read_document("policy", tmp_path / name, now_s=START_S)


def test_prices_are_read_with_their_age(tmp_path: Path) -> None:
    found = read(tmp_path, "prices", PRICES)
    assert isinstance(found.content, PriceList)
    age = (datetime.fromtimestamp(START_S, UTC).date() - found.content.as_of).days
    assert (str(found.content.prices[0].amount), found.content.age_days) == ("2.50", age)
    assert any(f"{age} days old" in warning for warning in found.warnings)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("EUR", "Euro", "line 1: currency: 'Euro' is no currency; did you mean EUR"),
        ("2.50", "-2.50", "line 5: prices[1].amount: Input should be greater than or equal to 0"),
        ("2.50", ".nan", "line 5: prices[1].amount"),
        ("2.50", "'2.50 EUR'", "valid decimal"),
        ("2.50", "yes", "no amounts"),
        ("device: cuda", "devise: cuda", "there is no such key; did you mean device?"),
        ("device: cuda", "device: gpu", "'gpu' is unknown"),
        ("device: cuda", "launcher: slurmm", "'slurmm' is unknown"),
        ("device: cuda", "currency: USD", "one file holds one currency, at the top"),
        ("node_hour", "node_minute", "line 6: prices[2].per: allowed: 'device_hour' or 'node_hour'"),
        ("2026-01-01", "2099-01-01", "lies in the future"),
        ("2026-01-01", "someday", "line 3: as_of"),
        ("source: contract 17", "source: ''", "line 2: source"),
        ("as_of: 2026-01-01\n", "as_of: 2026-01-01\nage_days: 1\n", "line 4: age_days"),
    ],
)
def test_prices_that_are_none_are_refused_by_line(tmp_path: Path, old: str, new: str, words: str) -> None:
    assert old in PRICES
    assert words in refusal(tmp_path, "prices", PRICES.replace(old, new, 1))


def test_prices_may_be_written_as_json_and_stay_exact(tmp_path: Path) -> None:
    text = '{"currency": "EUR", "source": "o", "as_of": "2026-01-01", "prices": [{"amount": 0.1, "per": "node_hour"}]}'
    found = read(tmp_path, "prices", text).content
    assert isinstance(found, PriceList)
    assert str(found.prices[0].amount) == "0.1"


@pytest.mark.parametrize(
    "text", ["", "- 1", "a: [", PRICES.partition("  - {")[0] + "  - 7\n", PRICES.replace("amount: 2.50, ", "")]
)
def test_what_is_no_price_list_is_refused(tmp_path: Path, text: str) -> None:
    assert "prices.yaml: " in refusal(tmp_path, "prices", text)


def test_an_empty_price_list_is_refused(tmp_path: Path) -> None:
    text = PRICES.partition("prices:")[0] + "prices: []\n"
    assert "the list is empty" in refusal(tmp_path, "prices", text)


def test_a_price_that_no_launch_can_meet_and_a_price_of_nothing_are_warned_of(tmp_path: Path) -> None:
    text = PRICES.replace(", device: cuda", "").replace("36.00", "0")
    warnings = read(tmp_path, "prices", text).warnings
    assert any("prices[2] is never used" in words for words in warnings)
    assert any("prices[2] is 0" in words for words in warnings)
