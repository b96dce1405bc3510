"""`python -m runtime.cli launch ...` and `test`, for machines without the server's packages."""

import typer

from .launch import add_launch
from .selftest import add_selftest


def main() -> None:
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, no_args_is_help=True)
    add_launch(app)
    add_selftest(app)
    app(prog_name="forerun")


if __name__ == "__main__":
    main()
