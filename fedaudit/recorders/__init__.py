"""Recorders for other frameworks: one package per framework, each an optional extra."""
