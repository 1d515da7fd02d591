"""`opstage check`: check the shapes of a program for every size of its named dims.

command.py    the flags, and what is printed
project.py    the settings of a project: pyproject.toml, opstage.toml
files.py      the files that folders and patterns match
selection.py  selects findings: rules by name, comments that suppress them
target.py     parses a command-line argument: a shipped model, or a user's file
request.py    the request for one file, sent to the process that checks it
process.py    the processes of all files: started, timed, ended
worker.py     a process that has imported Opstage and forks a child for each file
child.py      the code that runs in that child
witness.py    records what a check reads; fingerprint.py: its current content
cache.py      earlier outcomes, valid while none of that changes
user.py       the functions of a user's file, checked
shipped.py    a shipped model, checked
sections.py   further sections of a report
"""
