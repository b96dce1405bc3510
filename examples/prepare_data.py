"""Write the example data sets as CSV files: split once, the same bytes on every machine, digests checked.

    python examples/prepare_data.py digits DIR      1,797 scanned handwritten digits of 8 x 8 pixels
    python examples/prepare_data.py diabetes DIR    442 patients, disease progression after a year

Both come with scikit-learn, so nothing is downloaded. The split is stratified and depends on the row ids alone.
"""

import argparse
import csv
import hashlib
import io
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from sklearn.datasets import load_diabetes, load_digits

HERE = Path(__file__).resolve().parent
SALT = "forerun example split 1"
PARTS = ("train", "validation", "holdout")


class DigestMismatch(SystemExit):
    """The files differ from the ones that the digests were fixed for."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data_set", choices=sorted(DATA_SETS))
    parser.add_argument("directory", type=Path)
    arguments = parser.parse_args()
    for path in prepare(arguments.data_set, arguments.directory):
        print(path)


def prepare(data_set: str, directory: Path) -> list[Path]:
    """Write train.csv, validation.csv and holdout.csv into `directory` and check their digests.

    Raises:
        DigestMismatch: the installed scikit-learn holds other data than the digests were fixed for.
    """
    load, digests_file = DATA_SETS[data_set]
    header, rows, strata = load()
    wanted = read_digests(digests_file)
    directory.mkdir(parents=True, exist_ok=True)
    written = []
    for part, chosen in zip(PARTS, split(strata), strict=True):
        content = to_csv(header, [rows[i] for i in chosen])
        found = hashlib.sha256(content).hexdigest()
        if wanted[f"{part}.csv"] != found:
            raise DigestMismatch(
                f"{part}.csv of {data_set} would have digest {found}, "
                f"{digests_file.name} says {wanted[f'{part}.csv']}. Next: install the scikit-learn of constraints.txt."
            )
        path = directory / f"{part}.csv"
        path.write_bytes(content)
        written.append(path)
    return written


def read_digests(path: Path) -> dict[str, str]:
    """File name -> SHA-256, from lines as sha256sum prints them."""
    return {name: digest for digest, name in (line.split() for line in path.read_text().splitlines())}


def split(strata: Sequence[int]) -> tuple[list[int], list[int], list[int]]:
    """Row numbers of train (60 %), validation (20 %) and hold-out (20 %), each stratum divided alike."""
    groups = defaultdict(list)
    for row, stratum in enumerate(strata):
        groups[stratum].append(row)
    parts: tuple[list[int], list[int], list[int]] = ([], [], [])
    for rows in groups.values():
        shuffled = sorted(rows, key=lambda row: hashlib.sha256(f"{SALT} {row}".encode()).digest())
        a, b = round(len(rows) * 0.6), round(len(rows) * 0.8)
        for part, chosen in zip(parts, (shuffled[:a], shuffled[a:b], shuffled[b:]), strict=True):
            part.extend(chosen)
    return sorted(parts[0]), sorted(parts[1]), sorted(parts[2])


def to_csv(header: Sequence[str], rows: Sequence[Sequence[int | float]]) -> bytes:
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return buffer.getvalue().encode("ascii")


Table = tuple[list[str], list[list[int | float]], list[int]]


def digits() -> Table:
    """id, 64 pixel values from 0 to 16, and the digit; stratified by the digit."""
    data = load_digits()
    pixels, labels = data.data.astype(np.int64), data.target.astype(np.int64)
    header = ["id", *(f"p{i:02d}" for i in range(64)), "label"]
    rows = [[row, *map(int, pixels[row]), int(labels[row])] for row in range(len(labels))]
    return header, rows, [int(label) for label in labels]


def diabetes() -> Table:
    """id, ten measurements as they were taken, and the progression; stratified by the quarter it falls into."""
    data = load_diabetes(scaled=False)
    header = ["id", *data.feature_names, "label"]
    rows = [[row, *map(_plain, data.data[row]), int(data.target[row])] for row in range(len(data.target))]
    quarters = np.searchsorted([87, 141, 212], data.target)
    return header, rows, [int(quarter) for quarter in quarters]


def _plain(value: float) -> int | float:
    return int(value) if float(value).is_integer() else float(value)


DATA_SETS: dict[str, tuple[Callable[[], Table], Path]] = {
    "digits": (digits, HERE / "digits" / "DIGESTS"),
    "diabetes": (diabetes, HERE / "trainer_style" / "DIGESTS"),
}

if __name__ == "__main__":
    main()
