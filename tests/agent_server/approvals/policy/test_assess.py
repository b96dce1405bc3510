"""Which level a plan needs: the strictest table counts, what is unknown takes the strictest row, and why is said."""

from decimal import Decimal
from pathlib import Path

import pytest

from agent_server.approvals.policy.assess import Facts, amounts, assess
from agent_server.approvals.policy.device_use import DeviceUse, device_use
from agent_server.approvals.policy.documents import parse_policy, parse_prices
from agent_server.approvals.policy.in_force import PolicyInForce, PricesInForce
from runtime.config.plan import ProcessLayout, Setting, TrainingPlan
from tests.fakes.approvals import START_S, cost_estimate, training_plan
from tests.fakes.nvml import FakeNvml
from tests.fakes.policies import PRICES, policy_text
from tools.domain.approval import Assessment, AssuranceLevel
from tools.domain.reports import Device
from tools.machine import MachineLimits, survey_devices

A2, A3, A4 = AssuranceLevel.A2, AssuranceLevel.A3, AssuranceLevel.A4
FREE = DeviceUse("none_needed", "no accelerator")


def in_force(**changes: str) -> PolicyInForce:
    text = policy_text(**changes)
    read = parse_policy(text)
    assert read.model is not None, read.findings
    return PolicyInForce(read.model, "lab-1@0", "a test", text)


def prices(text: str = PRICES) -> PricesInForce:
    read = parse_prices(text, now_s=START_S)
    assert read.model is not None, read.findings
    return PricesInForce(read.model, "prices@0", "a test", text)


def plan(
    *, hours: float = 1.0, processes: int = 2, nodes: int = 1, device: str = "cpu", **changes: object
) -> TrainingPlan:
    base = training_plan()
    update = {
        "ceilings": base.ceilings.model_copy(update={"wall_time_s": hours * 3600}),
        "layout": ProcessLayout(num_processes=processes, num_nodes=nodes, device=device),
        **changes,
    }
    return base.model_copy(update=update)


def facts(
    of: TrainingPlan, *, cost: float | None = 1.0, known: PricesInForce | None = None, use: DeviceUse = FREE
) -> Facts:
    return Facts(of, cost_estimate(of, cost=cost), True, known if known is not None else prices(), use)


def level(found: Assessment) -> AssuranceLevel | None:
    return found.level


# C91: 2 nodes x 8 GPUs x 3 h.
@pytest.mark.parametrize(
    ("amount", "per", "processes", "nodes", "hours", "device", "cost", "device_hours"),
    [
        ("2.50", "device_hour", 16, 2, 3.0, "cuda", "120.00", "48.00"),
        ("20", "node_hour", 16, 2, 3.0, "cuda", "120.00", "48.00"),
        ("0.10", "node_hour", 1, 1, 6.0, "cpu", "0.60", "6.00"),
        ("0", "device_hour", 16, 2, 3.0, "cuda", "0.00", "48.00"),
    ],
)
def test_the_unit_of_the_price_decides_and_nothing_is_multiplied_twice(
    amount: str, per: str, processes: int, nodes: int, hours: float, device: str, cost: str, device_hours: str
) -> None:
    text = PRICES.partition("prices:")[0] + f"prices:\n  - {{amount: {amount}, per: {per}}}\n"
    found = assess(
        in_force(), facts(plan(hours=hours, processes=processes, nodes=nodes, device=device), known=prices(text))
    )
    assert (found.most_cost, found.currency, found.most_device_hours) == (cost, "EUR", device_hours)


def test_no_price_is_unknown_and_never_zero() -> None:
    text = PRICES.partition("  - {amount: 36")[0]  # a price for cuda alone
    found = amounts(plan(), cost_estimate(plan(), cost=1.0), prices(text).prices)
    assert found.cost is None
    assert "no price fits" in found.why
    assert found.words().startswith("unknown")
    assert amounts(plan(), None, prices().prices).cost is None
    assert amounts(plan(), cost_estimate(plan(), cost=1.0), None).cost is None


COST_ROWS = "[{up_to: 36, needs: A2}, {up_to: 100, needs: A3}, {needs: A4}]"


@pytest.mark.parametrize(("hours", "expected"), [(0.5, A2), (1.0, A2), (1.01, A3), (2.7, A3), (3.0, A4)])
def test_the_most_that_it_may_cost_picks_the_row(hours: float, expected: AssuranceLevel) -> None:
    assert level(assess(in_force(launches_cost=COST_ROWS), facts(plan(hours=hours)))) is expected


@pytest.mark.parametrize(
    ("cost", "known", "words"),
    [
        (None, None, "the estimate has no cost"),
        (1.0, PricesInForce(), "no price list counts"),
        (1.0, prices(PRICES.replace("EUR", "USD")), "the estimate is in EUR"),
    ],
)
def test_an_unknown_cost_takes_the_strictest_row(cost: float | None, known: PricesInForce | None, words: str) -> None:
    found = assess(in_force(launches_cost=COST_ROWS), facts(plan(hours=0.01), cost=cost, known=known))
    assert level(found) is A4
    assert found.most_cost is None
    assert any(words in why and "strictest row" in why for why in found.why)


def test_prices_in_another_currency_than_the_policys_are_unknown_to_it() -> None:
    dollars = prices(PRICES.replace("EUR", "USD"))
    of = plan(hours=0.01)
    estimate = cost_estimate(of, cost=1.0).model_copy(update={"currency": "USD"})
    found = assess(in_force(launches_cost=COST_ROWS), Facts(of, estimate, True, dollars, FREE))
    assert level(found) is A4
    assert any("the policy counts in EUR, the prices in USD" in why for why in found.why)


def test_device_hours_count_all_devices() -> None:
    rules = in_force(launches_device_hours="[{up_to: 16, needs: A2}, {needs: A3}]")
    assert level(assess(rules, facts(plan(hours=2, processes=8)))) is A2
    assert level(assess(rules, facts(plan(hours=2.001, processes=8)))) is A3


@pytest.mark.parametrize(
    ("use", "expected"),
    [
        (DeviceUse("none_needed", ""), A2),
        (DeviceUse("free", ""), A2),
        (DeviceUse("in_use", "GPU 0 is in use: 97% busy"), A3),
        (DeviceUse("unknown", "the driver does not answer"), A3),
    ],
)
def test_devices_that_others_use_or_of_which_nothing_is_known(use: DeviceUse, expected: AssuranceLevel) -> None:
    found = assess(in_force(launches_devices="{free: A2, in_use: A3}"), facts(plan(), use=use))
    assert level(found) is expected
    assert any(use.words in why for why in found.why)


PERSONAL = "{absent: A2, present: A3, paths_with: [/data/patients], paths_without: [/data]}"


@pytest.mark.parametrize(
    ("path", "setting", "expected"),
    [
        ("/data/train.csv", None, A2),
        ("/data/patients/a.csv", None, A3),
        ("/data/public", None, A2),
        ("/data", None, A3),
        ("/", None, A3),
        ("/database/train.csv", None, A3),
        ("/elsewhere/train.csv", None, A3),
        ("/data/train.csv", "yes", A3),
        ("/elsewhere/train.csv", "no", A3),
    ],
)
def test_only_the_policy_says_that_data_is_not_personal(
    path: str, setting: str | None, expected: AssuranceLevel
) -> None:
    base = plan()
    settings = () if setting is None else (Setting(name="personal_data", value=setting, origin="user"),)
    of = plan(data=(base.data[0].model_copy(update={"path": path}),), settings=settings)
    assert level(assess(in_force(launches_personal_data=PERSONAL), facts(of))) is expected


def test_a_plan_without_declared_data_is_no_plan_without_personal_data() -> None:
    found = assess(in_force(launches_personal_data=PERSONAL), facts(plan(data=())))
    assert level(found) is A3
    assert any("no data is declared" in why for why in found.why)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, A2),
        ({"inherited": ("HF_TOKEN",)}, A3),
        ({"argv": ("--push_to_hub",)}, A3),
        ({"argv": ("--PUSH_TO_HUB=1",)}, A3),
        ({"argv": ("--pushing",)}, A2),
        ({"environment": {"PUSH_TO_HUB": "1"}}, A3),
        ({"environment": {"MODE": "push_to_hub"}}, A3),
        ({"environment": {"HOME": "/home/push_to_hub"}}, A2),
    ],
)
def test_signs_of_something_irreversible(changes: dict[str, object], expected: AssuranceLevel) -> None:
    rules = in_force(launches_irreversible="{none_seen: A2, signs: A3, words: [push_to_hub]}")
    assert level(assess(rules, facts(plan(**changes)))) is expected


def test_the_signed_policy_whose_file_was_edited_keeps_its_stricter_rows() -> None:
    lax, strict = in_force(), in_force(launches_cost="[{needs: A4}]")
    both = PolicyInForce(lax.policy, "shipped-1", "", "", ("it was edited",), strict.policy)
    found = assess(both, facts(plan()))
    assert level(found) is A4
    assert found.notes == ("it was edited",)
    other_way = PolicyInForce(strict.policy, "shipped-1", "", "", (), lax.policy)
    assert level(assess(other_way, facts(plan()))) is A4


TIER = "{max_cost: 36, max_device_hours: 2, max_per_day: 2}"
ALL_ABSENT = "{absent: A2, present: A2, paths_without: [/data]}"


def free(
    of: TrainingPlan, *, today: int = 0, use: DeviceUse = FREE, cost: float | None = 1.0, passed: bool = True
) -> Assessment:
    rules = in_force(free_tier=TIER, launches_personal_data=ALL_ABSENT)
    given = Facts(of, cost_estimate(of, cost=cost), passed, prices(), use)
    return assess(rules, given, free_today=today)


def test_the_free_tier_covers_a_small_harmless_launch_alone() -> None:
    assert free(plan()).level is None
    elsewhere = plan().data[0].model_copy(update={"path": "/other/x.csv"})
    for found, words in (
        (free(plan(hours=1.01)), "it may cost 36.36 EUR"),
        (free(plan(processes=3)), "device hours"),
        (free(plan(), today=2), "2 free launches today"),
        (free(plan(), use=DeviceUse("in_use", "GPU 0")), "devices shared"),
        (free(plan(), use=DeviceUse("unknown", "silent")), "devices unknown"),
        (free(plan(), cost=None), "cost unknown"),
        (free(plan(), passed=False), "the smoke run did not pass"),
        (free(plan(inherited=("HF_TOKEN",))), "irreversible"),
        (free(plan(data=(elsewhere,))), "personal data unknown"),
    ):
        assert found.level is A2, words
        assert any("not in the free tier" in why and words in why for why in found.why), found.why


def test_no_free_tier_by_default_nor_beside_an_edited_file() -> None:
    assert assess(in_force(launches_personal_data=ALL_ABSENT), facts(plan()), free_today=0).level is A2
    rules = in_force(free_tier=TIER, launches_personal_data=ALL_ABSENT)
    edited = PolicyInForce(rules.policy, rules.version, "", "", (), rules.policy)
    assert assess(edited, facts(plan()), free_today=0).level is A2


def gpu(ordinal: int, **changes: object) -> Device:
    values: dict[str, object] = {
        "kind": "cuda",
        "name": "H100",
        "ordinal": ordinal,
        "memory_total_bytes": 80 * 2**30,
        "memory_free_bytes": 79 * 2**30,
        "memory_kind": "dedicated",
        "utilisation_percent": 0.0,
        **changes,
    }
    return Device.model_validate(values)


def test_use_of_devices_as_the_driver_tells_it() -> None:
    two = ProcessLayout(num_processes=2, device="cuda")
    assert device_use(ProcessLayout(num_processes=2), []).state == "none_needed"
    assert device_use(two, [gpu(0), gpu(1)]).state == "free"
    assert device_use(two, [gpu(1, utilisation_percent=97.0), gpu(0)]).state == "in_use"
    assert device_use(two, [gpu(0), gpu(1), gpu(2, utilisation_percent=97.0)]).state == "free"
    assert device_use(two, [gpu(0, memory_free_bytes=40 * 2**30), gpu(1)]).state == "in_use"
    assert device_use(two, [gpu(0)]).state == "unknown"
    assert device_use(two, [gpu(0), gpu(1, usable=False)]).state == "unknown"
    assert device_use(two, []).state == "unknown"
    assert device_use(two, [gpu(0), gpu(1, memory_total_bytes=None, utilisation_percent=None)]).state == "unknown"
    assert device_use(two, [gpu(0), gpu(1, memory_kind="unified")]).state == "unknown"
    assert device_use(two, [gpu(0), gpu(1, utilisation_percent=None)]).state == "free"
    assert device_use(ProcessLayout(num_processes=16, num_nodes=8, device="cuda"), [gpu(0), gpu(1)]).state == "unknown"
    assert device_use(ProcessLayout(num_processes=1, device="xla"), []).state == "unknown"


@pytest.mark.parametrize(
    ("used_gib", "utilisation", "expected"),
    [
        (0, {"rc": 0, "gpu": 0}, "free"),
        (0, {"rc": 0, "gpu": 97}, "in_use"),
        (60, {"rc": 3}, "in_use"),
        (0, {"rc": 3}, "free"),
    ],
)
def test_what_nvml_says_of_others_decides(used_gib: int, utilisation: dict[str, int], expected: str) -> None:
    memory = {"rc": 0, "total": 80 * 2**30, "used": used_gib * 2**30}
    device = {"name": "FAKE H100 80GB", "uuid": "GPU-1", "mig_mode": 0, "memory": memory, "utilization": utilisation}
    driver = FakeNvml({"nvmlInit": 0, "driver": "580", "devices": [device]})
    limits = MachineLimits(
        num_cpus=4, cpu_source="host", memory_total_bytes=1, memory_available_bytes=1, memory_source="host"
    )
    survey = survey_devices({}, limits, lambda: driver)
    assert device_use(ProcessLayout(num_processes=1, device="cuda"), survey.devices).state == expected


def test_amounts_are_rounded_up_and_exact() -> None:
    found = amounts(plan(hours=1 / 3600), cost_estimate(plan(), cost=1.0), prices().prices)
    assert found.cost == Decimal("0.010000")
    odd = amounts(plan(hours=1 / 7), cost_estimate(plan(), cost=1.0), prices().prices)
    assert odd.cost is not None
    assert 0 <= odd.cost - Decimal(36) / 7 <= Decimal("0.000002")


def test_the_words_name_every_table(tmp_path: Path) -> None:
    found = assess(in_force(), facts(plan()))
    assert [why.split()[1] for why in found.why] == ["cost", "device", "devices:", "personal", "no"]
