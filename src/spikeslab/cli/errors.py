"""Bad input on the command line."""


class InputError(Exception):
    """What is wrong with an option, in one sentence that names it, what it got and what is allowed."""
