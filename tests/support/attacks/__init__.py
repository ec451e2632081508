"""Hostile and damaged folders: an attack changes a copy of an honest folder.

`ATTACKS` of each module maps a name to a function of the folder. `documents` holds the tools that
they share.
"""
