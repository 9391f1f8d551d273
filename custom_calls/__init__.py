"""Operators with hand-written bodies: one folder per operator, each with a pure JAX reference that is also the last route.

This package imports nothing of the engine but its errors.
"""

from onecat_jax.custom_calls.registration import register

register()
