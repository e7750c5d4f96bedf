"""
`python -m fairq_schema` is `fairq`.
"""

from fairq_schema.cli import main

raise SystemExit(main())
