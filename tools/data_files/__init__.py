"""What lies in data files: rows, columns, types and everything that would spoil a training run."""

from .report import ColumnReport, DataFileReport
from .table import column_names, inspect_data_file, read_columns

__all__ = ["ColumnReport", "DataFileReport", "column_names", "inspect_data_file", "read_columns"]
