"""The `onecat` command."""
