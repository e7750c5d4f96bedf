"""
How fairq compares with other queues, measured on one server in one run.

__main__    the command: `ci/bench --help`
queues      what a queue is installed, filled, claimed from and completed by: SQL; ours, and the floor
peers       the other queues
sizes       how much of everything: smoke, quick, full
workers     what a process does that produces or consumes
crew        such processes at work together
meters      what the server spends meanwhile: CPU, WAL, buffers, instructions, waits
segments    one queue at work for a moment in a fresh database, and several in turn
throughput  workloads: `claim`, `enqueue`, `sessions`, `wal`
endurance   workloads: `groups`, `depth`, `held`, `wake`, `notify`, `growth`
profile     the workload `profile`: the time of each step
counted     the workload `instructions`: those of a session, under valgrind
report      the tables, and docs/performance.md with them
plot        the picture
"""
