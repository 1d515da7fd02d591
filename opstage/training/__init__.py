"""Parameters, and what changes them: the imperative session, trainers, optimizers and schedules."""
