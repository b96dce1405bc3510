"""Records as rows: the canonical JSON of a model, and back."""

from typing import Any, TypeVar

import rfc8785
from pydantic import BaseModel, ValidationError
from sqlalchemy import Column, Connection, Select, Table, select

from tools.domain.errors import InvalidInput, NotFound, StoreUnavailable

Model = TypeVar("Model", bound=BaseModel)


def to_body(data: Any) -> str:
    """RFC 8785 JSON of a model or of plain data.

    Raises:
        InvalidInput: a number is not finite, or a text is no Unicode.
    """
    if isinstance(data, BaseModel):
        data = data.model_dump(mode="json")
    try:
        return rfc8785.dumps(data).decode()
    except (rfc8785.CanonicalizationError, UnicodeEncodeError) as error:
        raise InvalidInput(
            f"the record cannot be kept as JSON: {error}", allowed="finite numbers, integers below 2**53, Unicode text"
        ) from error


def from_body(model: type[Model], body: str, *, what: str) -> Model:
    """The model that `body` holds.

    Raises:
        StoreUnavailable: it is none of ours: the row was edited or damaged.
    """
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        raise StoreUnavailable(
            f"the record of {what} in the database is damaged ({error.error_count()} problems). Approvals stay closed",
            next_step="`forerun audit verify` names what was changed",
        ) from error


def one_body(connection: Connection, column: Column[str], key: str, *, what: str, hint: str) -> str:
    """The body of the row with this key.

    Raises:
        NotFound: there is none.
    """
    body = maybe_body(connection, column, key)
    if body is None:
        raise NotFound(f"there is no {what} {key!r}", next_step=hint)
    return body


def maybe_body(connection: Connection, column: Column[str], key: str) -> str | None:
    """The body of the row with this key, or None."""
    body: str | None = connection.execute(select(column.table.c.body).where(column == key)).scalar()
    return body


def newest_first(table: Table, *, limit: int, before: int | None = None) -> Select[str]:
    """Bodies, newest first, older than the row with sequence `before`."""
    query = select(table.c.body).order_by(table.c.sequence.desc()).limit(limit)
    return query if before is None else query.where(table.c.sequence < before)
