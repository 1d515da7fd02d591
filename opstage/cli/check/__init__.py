"""`opstage check`: check the shapes of a program for every size of its named dims.

command.py     the flags, and what is printed
selection.py   what is checked and reported: settings of a project, targets, files, rules
request.py     the request for one file, sent to the process that checks it
processes.py   the processes of all files: started, timed, ended
cache.py       earlier outcomes, valid while nothing changes that a check has read
checks.py      the check of a model, and of the functions of a user's file
sections.py    further sections of a report
"""
