"""`forerun policy explain` and `forerun prices show`: what counts now, and what it makes of a plan."""

import time
from pathlib import Path

from agent_server.approvals.policy.budgets import budget_lines, free_launches
from agent_server.approvals.policy.check import Rules, reservation, rules_of
from agent_server.approvals.policy.documents import read_document
from agent_server.approvals.policy.in_force import PricesInForce, prices_in_force
from agent_server.procedure.ruling import assessment, estimate_is_current
from agent_server.procedure.workplace import see_devices
from agent_server.settings import Settings
from tools.domain.errors import Refused
from tools.domain.ids import require_id
from tools.domain.plan_state import NEXT_TOOL, PlanRecord
from tools.domain.ports import Store
from tools.evidence.prices import PriceList

from .opening import opened_store
from .output import say


def explain(settings: Settings, plan_id: str) -> None:
    """The policy that counts; with a plan, the level that it needs and why.

    Raises:
        InvalidInput, NotFound: no such plan.
        Refused: the plan is not settled yet.
    """
    if plan_id:
        require_id(plan_id, "plan")
    with opened_store(settings) as store:
        now_s = max(time.time(), store.latest_time_s())
        rules = rules_of(store, now_s=now_s)
        _say_source(rules)
        if plan_id:
            _explain_plan(store, store.plan(plan_id), rules, now_s=now_s)
        else:
            say("")
            for line in rules.policy.text.splitlines():
                say(line)


def show_prices(settings: Settings, path: Path | None) -> None:
    """The prices that count, or those of a file.

    Raises:
        InvalidInput: the file is wrong.
    """
    if path is not None:
        document = read_document("prices", path, now_s=time.time())
        if isinstance(document.content, PriceList):
            say(f"{path}: {document.version}, not applied by this command")
            _say_prices(document.content)
        return
    with opened_store(settings) as store:
        found = prices_in_force(store, now_s=max(time.time(), store.latest_time_s()))
    _say_prices_source(found)
    if found.prices is not None:
        _say_prices(found.prices)


def _say_source(rules: Rules) -> None:
    for note in rules.policy.notes:
        say(f"WARNING: {note}", style="bold red")
    say(f"Policy {rules.policy.version}: {rules.policy.source}", style="bold")
    if rules.mode == "simulated":
        say("This state directory is SIMULATED: every launch needs a simulated approval.", style="bold magenta")
    _say_prices_source(rules.prices)


def _say_prices_source(found: PricesInForce) -> None:
    for note in found.notes:
        say(f"WARNING: {note}", style="bold red")
    say(f"Prices {found.version}: {found.source}" if found.version else f"Prices: {found.source}; costs are unknown")


def _say_prices(prices: PriceList) -> None:
    for price in prices.prices:
        target = f"launcher {price.launcher or 'any'}, device {price.device or 'any'}"
        say(f"  {target}: {prices.describe(price)}")


def _explain_plan(store: Store, record: PlanRecord, rules: Rules, *, now_s: float) -> None:
    if record.plan is None:
        raise Refused(f"plan {record.plan_id} is not settled", next_step=NEXT_TOOL[record.state])
    today = free_launches(store.reservations(), now_s=now_s)
    found = assessment(record, rules, survey=see_devices, free_today=today)
    level = "no approval (free tier)" if found.level is None else found.level.value
    if rules.mode == "simulated":
        level = f"a simulated approval; elsewhere it would need {level}"
    say("")
    say(f"Plan {record.plan_id} ({record.state.value}) needs {level}, because", style="bold")
    for words in found.why:
        say(f"  {words}")
    cost = "unknown" if found.most_cost is None else f"{found.most_cost} {found.currency}"
    say(f"At most: {cost}, {found.most_device_hours} device hours")
    if record.estimate is None:
        say("There is no estimate yet: with one, the cost may become known.", style="yellow")
    elif not estimate_is_current(record.estimate, record.plan.layout, rules.prices.prices):
        say("The estimate was made under other prices: estimate_cost again.", style="yellow")
    new = reservation(record, rules, reservation_id=record.plan_id, now_s=now_s, expires_at_s=now_s)
    others = [held for held in store.reservations() if held.plan_id != record.plan_id]
    for line in budget_lines(rules.policy, others, new, now_s=now_s):
        say(f"Budget of {line}")
