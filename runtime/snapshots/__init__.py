"""What a run is bound to: code, modules outside of it, secrets; copied, digested, compared."""
