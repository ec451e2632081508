"""Shared by all layers: files, devices, optional packages, lazy exports, dataclasses as JSON."""
