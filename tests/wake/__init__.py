"""
Waking listeners.
"""
