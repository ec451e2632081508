"""Hostile and damaged folders: an attack changes a copy of an honest folder.

`ATTACKS` of each module maps a name to a function of the folder. `tools` holds what they share,
`honest` the folders and the commands that read them.
"""
