"""Identities, scopes, limits, budgets, ledger and store. Knows neither gRPC, HTTP nor torch."""
