"""Configuration: components by name, their options, their saved form, and allowed values."""
