"""Typed parameters: one small module per section of params.yaml."""
