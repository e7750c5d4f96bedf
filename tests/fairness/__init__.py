"""
Fairness: the exact model, the traces that compare it with the SQL, and the known answers.
"""
