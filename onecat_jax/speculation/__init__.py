"""Speculative decoding: drafters, rounds, adaptation."""
