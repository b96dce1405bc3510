"""The job in charge of one run: from its claim to its result, with every process it starts accounted for."""
