"""The demonstration behind `fairq demo`: four tenants, one flood, and the measured lag ratio."""

from fairq_schema.demo.run import add_arguments, main

__all__ = ["add_arguments", "main"]
