"""Talking to a trained arm."""
