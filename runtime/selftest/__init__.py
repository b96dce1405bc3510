"""What every rank runs in `forerun test`."""
