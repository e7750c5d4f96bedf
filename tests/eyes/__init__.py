"""What operators see: traces, `fairq top`, `fairq doctor`, metrics."""
