"""Plans, requests, approvals, runs and the audit log, in a database."""
