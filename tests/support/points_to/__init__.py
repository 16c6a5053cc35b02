"""Which calls of AWS can a program of ours make, and on which tables? Found by reading it, never by running it.

A points-to analysis over the abstract syntax: what may each variable, field and container hold? A method is looked at
once for every object that it may be called on, so that two stores of one class on two tables stay apart; a function
that is given operations of a client, once for each of them. What is not ours is taken to hand on what it is given, and
to call every function that it is given. So nothing that can happen is missed, but for what a program makes up at run
time by names: there is a test that every call in the text is found by somebody.

    values      what a variable may hold
    program     the modules, and which names are local to what
    solver      what is known, and who must look again when more is
    reading     statements and expressions
    calling     calls: of ours, of what is not ours, of AWS
"""
