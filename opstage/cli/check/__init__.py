"""`opstage check`: are the shapes of a program right, for every size of its named dims?

command.py    the flags, and what is printed
target.py     what a word on the command line means: a shipped model, or a file of the user's
request.py    what is asked of one file; it goes to the process that checks it
process.py    that process: started, timed, ended
child.py      what runs in it
loading.py    the user's file imported, and a function found in it
user.py       the functions of a user's file, checked
shipped.py    a shipped model, checked
sections.py   what a report holds beside its findings
"""
