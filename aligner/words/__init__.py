"""One word and one set of named arguments for an operation, whatever a framework calls it.

operations  the table: words, the names that mean them, arguments with their defaults
calls       a call in these words: operands, arguments in one form
spelling    an operation as source code of a framework
"""
