"""Checkpoints in canonical form, as orbax stores them: written by `convert`, restored onto any tensor-parallel degree.

Importing orbax takes about as long as importing JAX, and most checkpoints need none of it. Only `writer`, `reader` and
`restore` import it, and whoever writes or reads such a folder imports those.
"""
