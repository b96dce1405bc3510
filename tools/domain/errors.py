"""What a tool refuses with. Each class is one kind of answer at the doors; none of them changes anything."""

from runtime.errors import ForerunError


class InvalidInput(ForerunError):
    """A value that came from outside is wrong. Through MCP an isError result, in the CLI exit code 2."""

    code = "invalid_input"


class NotFound(ForerunError):
    """No plan, request, run or file by this id."""

    code = "not_found"


class WrongStep(ForerunError):
    """The procedure's order forbids this step now; `next_step` names the one that comes first."""

    code = "wrong_step"


class Refused(ForerunError):
    """Not allowed: no approval, an expired, used or foreign one, or what was approved has changed since."""

    code = "refused"


class Conflict(ForerunError):
    """Someone else changed the record in between; the caller reads it again."""

    code = "conflict"


class StoreUnavailable(ForerunError):
    """The database cannot be read or written; approvals stay closed."""

    code = "store_unavailable"
