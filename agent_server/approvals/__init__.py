"""Approvals: the request, the policy, keys, and the signed decision, which only human doors can reach."""
