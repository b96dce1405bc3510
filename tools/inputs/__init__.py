"""The parts of validate_inputs: script, arguments, settings, data, evaluation, environment; each finds all at once."""
