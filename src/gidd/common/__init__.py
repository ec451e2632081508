"""What every layer may use: files, devices, optional packages, dataclasses as plain data."""
