"""`python -m runtime.cli launch ...`, for machines without the server's packages."""

import typer

from .launch import add_launch


def main() -> None:
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, no_args_is_help=True)
    app.callback()(lambda: None)  # so that `launch` stays a word of its own
    add_launch(app)
    app(prog_name="forerun")


if __name__ == "__main__":
    main()
