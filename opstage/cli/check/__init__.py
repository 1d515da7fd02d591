"""`opstage check`: are the shapes of a program right, for every size of its named dims?

command.py    the flags, and what is printed
project.py    what a project says: pyproject.toml, opstage.toml
files.py      the files that folders and patterns stand for
selection.py  which findings count: rules by name, comments that suppress them
target.py     what a word on the command line means: a shipped model, or a file of the user's
request.py    the question about one file; it goes to the process that checks it
process.py    the processes of all files: started, timed, ended
worker.py     a process that has Opstage imported, and forks one for each file
child.py      what runs in that
witness.py    what a check has read; fingerprint.py: what is there
cache.py      what was found before, while all of that is as it was
user.py       the functions of a user's file, checked
shipped.py    a shipped model, checked
sections.py   what a report holds beside its findings
"""
