"""How a run is started: one Protocol, one file per way of starting."""
