"""Shared by all layers; docs/architecture.md says what each module is for."""
