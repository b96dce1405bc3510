"""`python -m tools.report ENVELOPE KEY.pem`: check a report; exit 0 if all holds, 1 if files differ, 2 if refused."""

import json
import sys
from pathlib import Path

from runtime.errors import ForerunError

from .check import verify_report


def main(arguments: list[str]) -> int:
    """Print the result of verify_report as JSON."""
    if len(arguments) != 2:
        sys.stderr.write("usage: python -m tools.report report.dsse.json public-key.pem\n")
        return 2
    envelope, key = map(Path, arguments)
    try:
        result = verify_report(json.loads(envelope.read_text()), key.read_text())
    except (ForerunError, OSError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    sys.stdout.write(json.dumps(result, indent=1) + "\n")
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
